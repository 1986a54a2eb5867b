// Marks what the shared library exports; everything else is hidden (tests/exported_symbols.txt is the committed list).
#pragma once

#define EJK_API __attribute__((visibility("default")))
