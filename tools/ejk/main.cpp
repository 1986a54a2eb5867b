// ejk: measures, checks and explains the kernels of this library.
#include "tools/ejk/verbs.h"

namespace {

constexpr ejk::tool::Verb kVerbs[] = {
    {"docs", "writes the generated pages of the documentation", "  ejk docs\n  ejk docs --check docs",
     ejk::tool::declare_docs},
    {"explain", "which kernel and config a call gets, and why",
     "  ejk explain flash_attention --dtype bf16 --batch 2 --q_len 4096 --num_q_heads 32 --num_kv_heads 8 --causal\n"
     "  ejk explain flash_attention --num_seqs 8 --total_q 4096 --platform cpu --json",
     ejk::tool::declare_explain},
    {"header", "one typed C function per operation, as the text of a header",
     "  ejk header > ejkernel/ejkernel_ops.h\n  EJKERNEL_PLUGINS=$PWD/my.so ejk header my_operation > my_operation.h",
     ejk::tool::declare_header},
    {"list", "the operations and their kernels",
     "  ejk list\n  ejk list flash_attention\n  ejk list --platform cpu --json", ejk::tool::declare_list},
};

}  // namespace

int main(int argc, char** argv) { return ejk::tool::run_command_line(kVerbs, argc, argv); }
