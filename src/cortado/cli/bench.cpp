// cortado bench: the speed of operators and models on this machine.
#include <ATen/Parallel.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/bench/measure.h"
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

std::string tokens_of(const Json& row) {
  return row["pass"] == "step" ? concat("1 at ", row["depth"]) : plain(row["tokens"]);
}

void print_tables(const Json& json) {
  const Table ceilings = table_of(json["ceilings"], {{"threads", "/threads"},
                                                     {"FMA GFLOP/s", "/fma_flops", decimals(0, 1e9)},
                                                     {"matmul GFLOP/s", "/matmul_flops", decimals(0, 1e9)},
                                                     {"by", "/matmul"},
                                                     {"read GB/s", "/read_bytes", decimals(1, 1e9)},
                                                     {"stream GB/s", "/stream_bytes", decimals(1, 1e9)},
                                                     {"exp G/s", "/exps", decimals(2, 1e9)}});
  const Table rows = table_of(json["rows"], {{"operator", "/case"},
                                             {"pass", "/pass"},
                                             {"T", "", tokens_of},
                                             {"threads", "/threads"},
                                             {"time", "/seconds", duration},
                                             {"tokens/s", "/tokens_per_second", human_count},
                                             {"GFLOP/s", "/flops_per_second", decimals(1, 1e9)},
                                             {"% FMA", "/share/fma", percent},
                                             {"% matmul", "/share/matmul", percent},
                                             {"GB/s", "/bytes_per_second", decimals(1, 1e9)},
                                             {"% stream", "/share/stream", percent},
                                             {"% exp", "/share/exp", percent}});
  std::cout << ceilings.text() << "\n" << rows.text();
}

void print_text(const OperatorRequest& request, const Json& json) {
  const Machine machine = this_machine();
  std::cout << machine.cpu << ", " << selected_isa() << "; B 1, H " << request.heads << ", K = V = " << request.size
            << ", " << (request.dtype == at::kBFloat16 ? "bfloat16" : "float32") << "; medians of " << request.rounds
            << " rounds\n\nCeilings of this run:\n";
  print_tables(json);
  std::cout
      << "\nFLOPs: 4 K V per token and head for a scan (6 for the delta scan, 8 for the two passes over slots), 4 K "
         "per key seen; 3.5\ntimes that with backward. Bytes: inputs and outputs once; with backward 3 inputs + 2 "
         "outputs. exp: exponentials of the definition, forward only.\n";
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
  Json json = measure_operators(request);
  if (options.json) {
    json["machine"] = machine_description(at::kCPU);
    json["machine"]["isa"] = selected_isa();
    json["settings"] = {{"heads", request.heads},
                        {"size", request.size},
                        {"rounds", request.rounds},
                        {"dtype", request.dtype == at::kBFloat16 ? "bfloat16" : "float32"}};
    std::cout << json.dump(2) << std::endl;
  } else {
    print_text(request, json);
  }
  exit_if_interrupted();
}

void add_ops_command(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand(
      "ops",
      "Measure primitives and mechanisms (forward, with backward, per step) relative to what the machine can do");
  auto options = std::make_shared<OpsOptions>();
  OperatorRequest& request = options->request;
  option(*command, "--op", options->operators, "operators: gated_scan, gated_scan/head, latte, ... (default all)",
         kCommas);
  option(*command, "--tokens", request.tokens, "lengths (default 256 1024 4096 16384 65536)", kCommas,
         CLI::Range(1, 1 << 24));
  command->add_option("--heads", request.heads, "heads")->check(CLI::Range(1, 4096))->capture_default_str();
  option(*command, "--size", request.size, "K = V = latents = slots", CLI::Range(1, 4096), kShown);
  option(*command, "--threads", request.threads, "numbers of threads, measured in turns", kCommas, CLI::Range(1, 4096));
  option(*command, "--rounds", request.rounds, "measurements, whose median is printed", CLI::Range(1, 1000), kShown);
  option(*command, "--dtype", options->dtype, "float32 or bfloat16", CLI::IsMember({"float32", "bfloat16"}), kShown);
  command->add_option("--seed", options->seed, "seed of the random inputs")->check(CLI::NonNegativeNumber);
  command->add_flag("--json", options->json, "print JSON");
  command->add_flag("--quiet", options->quiet, "show no progress bar");
  std::string operators;
  for (const OperatorCase& each : operator_cases()) operators += concat("\n  ", each.name, ": ", each.note);
  command->footer(
      concat("Every operator is checked against its definition first; if one is wrong, nothing is measured. Times vary "
             "by 15 %\n"
             "from minute to minute, so compare only numbers of one run.\nOperators:",
             operators, "\nExamples:\n  cortado bench ops --op gated_scan,latte --tokens 4096 --threads 1,2\n",
             "  cortado bench ops --json >ops.json"));
  command->callback([options] { bench_operators(*options); });
}

// Several processes need torchrun, so the Python package does this.
void bench_scale(const std::vector<std::string>& words) {
  std::string python = "python3";
  const std::filesystem::path source = CORTADO_SOURCE "/python";
  std::error_code error;
  if (std::filesystem::exists(source / "cortado", error)) {
    python = CORTADO_PYTHON;
    const char* there = std::getenv("PYTHONPATH");
    ::setenv("PYTHONPATH", (source.string() + (there ? concat(":", there) : "")).c_str(), /*overwrite=*/1);
  }
  if (const char* named = std::getenv("PYTHON")) python = named;
  std::vector<std::string> command = {python, "-m", "cortado", "bench", "scale"};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  throw Failure(
      concat("[bench scale] ", python, " can't be started: ", std::strerror(errno), "; set $PYTHON to another one"));
}

void add_scale_command(CLI::App& bench) {
  CLI::App* command =
      bench.add_subcommand("scale", "Measure training on several processes: speed-up, memory, bytes sent");
  command->set_help_flag();
  command->prefix_command();
  command->callback([command] { bench_scale(command->remaining()); });
}

}  // namespace

void add_bench_command(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the speed of operators and models on this machine");
  bench->require_subcommand(0, 1);
  bench->callback([bench] {
    fail_input_if(bench->get_subcommands().empty(),
                  "[bench] choose what to measure: `cortado bench ops` or `cortado bench model CONFIG`");
  });
  add_ops_command(*bench);
  add_bench_model_command(*bench);
  add_scale_command(*bench);
}

}  // namespace cortado
