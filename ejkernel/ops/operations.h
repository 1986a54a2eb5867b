// Every operation of the library. A new one is a folder, an include here and a line in operations.cpp.
#pragma once

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
