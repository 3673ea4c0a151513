// cortado bench: how fast operators and models are on this machine.
#include <ATen/Parallel.h>

#include <iostream>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/bench/measure.h"
#include "cortado/cli/commands.h"
#include "cortado/cli/common.h"
#include "cortado/train/speed.h"

namespace cortado {
namespace {

struct OpsOptions {
  std::vector<std::string> operators;
  OperatorRequest request;
  std::string dtype = "float32";
  int64_t seed = 0;
  bool json = false, quiet = false;
};

std::string percent(double share) { return share > 0 ? fixed(100 * share, share < 0.0995 ? 1 : 0) : "-"; }

std::string duration(double seconds) {
  if (seconds < 1e-3) return fixed(1e6 * seconds, 1) + " us";
  return seconds < 1 ? fixed(1e3 * seconds, 2) + " ms" : fixed(seconds, 2) + " s";
}

void print_ceilings(const OperatorResult& result) {
  Table table({"threads", "FMA GFLOP/s", "matmul GFLOP/s", "by", "read GB/s", "stream GB/s", "exp G/s"});
  for (const auto& [threads, c] : result.ceilings) {
    table.add_row({std::to_string(threads), fixed(c.fma_flops / 1e9, 0), fixed(c.matmul_flops / 1e9, 0), c.matmul,
                   fixed(c.read_bytes / 1e9, 1), fixed(c.stream_bytes / 1e9, 1), fixed(c.exps / 1e9, 2)});
  }
  std::cout << table.text() << "\n";
}

void print_rows(const OperatorResult& result) {
  Table table({"operator", "pass", "T", "threads", "time", "tokens/s", "GFLOP/s", "% FMA", "% matmul", "GB/s",
               "% stream", "% exp"});
  for (const OperatorRow& row : result.rows) {
    const Ceilings& c = ceilings_of(result, row.threads);
    const double flops = row.flops / row.seconds, bytes = row.bytes / row.seconds, exps = row.exps / row.seconds;
    table.add_row({row.of->name, pass_name(row.pass),
                   row.pass == Pass::kStep ? concat("1 at ", row.depth) : std::to_string(row.tokens),
                   std::to_string(row.threads), duration(row.seconds), human_count(row.tokens_per_second()),
                   fixed(flops / 1e9, 1), percent(flops / c.fma_flops), percent(flops / c.matmul_flops),
                   fixed(bytes / 1e9, 1), percent(bytes / c.stream_bytes), percent(exps / c.exps)});
  }
  std::cout << table.text();
}

void print_text(const OperatorRequest& request, const OperatorResult& result) {
  const Machine machine = this_machine();
  std::cout << machine.cpu << ", " << selected_isa() << "; B 1, H " << request.heads << ", K = V = " << request.size
            << ", " << (request.dtype == at::kBFloat16 ? "bfloat16" : "float32") << "; medians of " << request.rounds
            << " rounds\n\nCeilings of this run:\n";
  print_ceilings(result);
  print_rows(result);
  std::cout << "\nflops: 4 K V a token and head for a scan (6 for the delta scan, 8 for the two passes over slots), "
               "4 K a key seen; 3.5 times that\nwith backward. Bytes: inputs and outputs once; with backward 3 inputs "
               "+ 2 outputs. exp: of the definition, forward.\n";
}

void bench_operators(OpsOptions& options) {
  OperatorRequest& request = options.request;
  request.dtype = options.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  at::manual_seed(static_cast<uint64_t>(options.seed));
  request.cases = find_operator_cases(options.operators);
  std::sort(request.tokens.begin(), request.tokens.end());
  request.progress = !options.quiet;
  request.stop = interrupt_requested;
  catch_interrupts();
  const OperatorResult result = measure_operators(request);
  if (options.json) {
    Json json = operator_json(result);
    json["machine"] = machine_description(at::kCPU);
    json["machine"]["isa"] = selected_isa();
    json["settings"] = {{"heads", request.heads},
                        {"size", request.size},
                        {"rounds", request.rounds},
                        {"dtype", request.dtype == at::kBFloat16 ? "bfloat16" : "float32"}};
    std::cout << json.dump(2) << std::endl;
  } else {
    print_text(request, result);
  }
  exit_if_interrupted();
}

void add_ops_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "ops", "Measure primitives and mechanisms: forward, with backward and by steps, beside what the machine can do");
  auto options = std::make_shared<OpsOptions>();
  OperatorRequest& request = options->request;
  command->add_option("--op", options->operators, "which: gated_scan, gated_scan/head, latte, ... (default all)")
      ->delimiter(',');
  command->add_option("--tokens", request.tokens, "lengths (default 256 1024 4096 16384 65536)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  command->add_option("--heads", request.heads, "heads")->check(CLI::Range(1, 4096))->capture_default_str();
  command->add_option("--size", request.size, "K = V = latents = slots")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--threads", request.threads, "one or several numbers of threads, measured in turns")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  command->add_option("--rounds", request.rounds, "the median of so many is printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of the random inputs")->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--quiet", options->quiet, "show no progress bar");
  std::string operators;
  for (const OperatorCase& each : operator_cases()) operators += concat("\n  ", each.name, ": ", each.note);
  command->footer(concat(
      "Everything is checked against its definition first; of what is wrong no number is printed. Times move by 15 % "
      "from minute\nto minute: compare within a run.\nOperators:",
      operators, "\nExamples:\n  cortado bench ops --op gated_scan,latte --tokens 4096 --threads 1,2\n",
      "  cortado bench ops --json >ops.json"));
  command->callback([options] { bench_operators(*options); });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the speed of operators and models on this machine");
  bench->require_subcommand(0, 1);
  bench->callback([bench] {
    fail_input_if(bench->get_subcommands().empty(),
                  "[bench] say what: `cortado bench ops`, or `cortado bench model CONFIG`");
  });
  add_ops_command(*bench);
  add_bench_model_command(*bench);
}

}  // namespace cortado
