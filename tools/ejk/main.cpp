// ejk: measures, checks and explains the kernels of this library.
#include <cstdio>

#include "ejkernel/runtime/choose.h"
#include "tools/ejk/verbs.h"

namespace {

constexpr ejk::tool::Verb kVerbs[] = {
    {"bench", "times named problems, against the machine's peak or a baseline",
     "  ejk bench\n  ejk bench flash_attention --case llama3_8b_prefill_1k --kernel cpu --threads 1\n"
     "  ejk bench flash_attention --backward --dtype bf16 --q_len 2048 --json\n"
     "  ejk bench flash_attention --save before.json && (… edit, build …) && "
     "ejk bench flash_attention --baseline before.json --fail-over 5%\n"
     "  ejk bench flash_attention --baseline-kernel reference --q_len 128\n  ejk bench --overhead",
     ejk::tool::declare_bench},
    {"cache", "the store: what it holds, whether it is whole, from one machine to another",
     "  ejk cache list\n  ejk cache show 3f2a\n  ejk cache verify --json\n  ejk cache export h200.ejk\n"
     "  ejk cache import h200.ejk\n  ejk cache diff OTHER --root /opt/tables\n  ejk cache gc --unused-days 90 "
     "--dry-run",
     ejk::tool::declare_cache},
    {"check", "random problems against float64, or one again; the reliability table",
     "  ejk check --seconds 60\n  ejk check flash_attention --kernel cpu\n"
     "  ejk check flash_attention --kernel cpu --seed 123\n  ejk check flash_attention --case odd_lengths\n"
     "  ejk check --table",
     ejk::tool::declare_check},
    {"compile", "CUDA kernels compiled for any GPU, without one; what they need",
     "  ejk compile\n  ejk compile flash_attention --arch sm_80,sm_90a\n"
     "  ejk compile flash_attention --case llama3_8b_prefill_1k --candidates\n"
     "  ejk compile --recorded calls.jsonl && ejk cache export programs.ejk --programs",
     ejk::tool::declare_compile},
    {"docs", "writes the generated pages of the documentation", "  ejk docs\n  ejk docs --check docs",
     ejk::tool::declare_docs},
    {"doctor", "what the library finds on this machine, and what to do about it",
     "  ejk doctor\n  ejk doctor --env\n  ejk doctor --json --seconds 0.5", ejk::tool::declare_doctor},
    {"explain", "which kernel and config a call gets, and why",
     "  ejk explain flash_attention --dtype bf16 --batch 2 --q_len 4096 --num_q_heads 32 --num_kv_heads 8 --causal\n"
     "  ejk explain flash_attention --num_seqs 8 --total_q 4096 --platform cpu --json",
     ejk::tool::declare_explain},
    {"header", "one typed C function per operation, as the text of a header",
     "  ejk header > ejkernel/ejkernel_ops.h\n  EJKERNEL_PLUGINS=$PWD/my.so ejk header my_operation > my_operation.h",
     ejk::tool::declare_header},
    {"list", "the operations and their kernels",
     "  ejk list\n  ejk list flash_attention\n  ejk list --platform cpu --json", ejk::tool::declare_list},
    {"run", "one call on random data: results, time, kernel",
     "  ejk run flash_attention --dtype bf16 --q_len 1024 --causal\n  ejk run mean_pooling --num_seqs 4 --seed 7 "
     "--json",
     ejk::tool::declare_run},
    {"tune", "configs that beat the heuristics' on this machine, kept in the store",
     "  ejk tune\n  ejk tune flash_attention --case llama3_8b_prefill_1k --budget 20\n"
     "  ejk tune flash_attention --backward --dtype bf16 --q_len 2048 --json\n  ejk tune mean_pooling --dry-run\n"
     "  EJKERNEL_OPS_RECORD=$PWD/calls.jsonl my_program && ejk tune --recorded calls.jsonl\n"
     "  ejk tune --hlo lowered.txt --budget 20",
     ejk::tool::declare_tune},
};

}  // namespace

int main(int argc, char** argv) {
  // Timing and checking are about the configs that are there; only `tune` looks for better ones.
  const ejk::PolicyOverride what_is_there({.autotune = false});
  const int code = ejk::tool::run_command_line(kVerbs, argc, argv);
  if (code != ejk::tool::kOk || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) return code;
  std::fputs("ejk: what it has to say could not be written: is the disk full?\n", stderr);
  return ejk::tool::kFailed;
}
