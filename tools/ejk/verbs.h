// The verbs of the tool, one file each.
#pragma once

#include "tools/ejk/options.h"

namespace ejk::tool {

Action declare_bench(Options& options);
Action declare_cache(Options& options);
Action declare_check(Options& options);
Action declare_compile(Options& options);
Action declare_docs(Options& options);
Action declare_doctor(Options& options);
Action declare_explain(Options& options);
Action declare_header(Options& options);
Action declare_list(Options& options);
Action declare_run(Options& options);
Action declare_tune(Options& options);

/// check --table; the exit code.
int print_reliability_table(bool as_json);

}  // namespace ejk::tool
