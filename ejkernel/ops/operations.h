// Every operation of the library. A new one is a folder, an include here and a line in operations.cpp.
#pragma once

#include "ejkernel/ops/attention/attention.h"
#include "ejkernel/ops/flash_attention/flash_attention.h"
#include "ejkernel/ops/gla_attention/gla_attention.h"
#include "ejkernel/ops/grouped_matmul/grouped_matmul.h"
#include "ejkernel/ops/lightning_attention/lightning_attention.h"
#include "ejkernel/ops/mean_pooling/mean_pooling.h"
#include "ejkernel/ops/page_append/page_append.h"
#include "ejkernel/ops/page_attention/page_attention.h"
#include "ejkernel/ops/ragged_decode_attention/ragged_decode_attention.h"
#include "ejkernel/ops/ragged_page_attention/ragged_page_attention.h"
#include "ejkernel/ops/ragged_page_attention_v3/ragged_page_attention_v3.h"
#include "ejkernel/ops/recurrent_attention/recurrent_attention.h"
#include "ejkernel/ops/rnn/rnn.h"
#include "ejkernel/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
