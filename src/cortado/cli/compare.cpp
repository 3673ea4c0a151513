// cortado compare: trains one model with several mixers, and prints one table.
#include "cortado/compare/compare.h"

#include "cortado/base/signals.h"
#include "cortado/cli/common.h"
#include "cortado/models/config.h"

namespace cortado {
namespace {

struct CompareOptions {
  CompareRequest request;
  std::vector<std::string> settings;
  std::optional<int64_t> steps, batch, context;
  bool quiet = false;
  std::shared_ptr<CommonOptions> common;
};

Json effective_config(const CompareOptions& options) {
  Json config = read_json_file(options.request.config_name);
  const auto set_training = [&config](const char* key, const auto& value) {
    if (value) set(config, concat("training.", key), *value);
  };
  for (const std::string& setting : options.settings) apply_setting(config, setting);
  set_training("steps", options.steps);
  set_training("batch", options.batch);
  set_training("context", options.context);
  set_training("seed", options.common->seed);
  set_training("dtype", options.common->dtype);
  return config;
}

std::vector<std::string> chosen_mixers(const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& name : names) {
    if (name == "all") return comparable_mixers();
    mixer_settings(name, 1);  // refuses unknown names
    fail_input_if(std::find(result.begin(), result.end(), name) != result.end(), "[--mixers] ", name,
                  " is named twice");
    result.push_back(name);
  }
  return result;
}

// Returns the command line without the program's name.
std::string words_given() {
  std::ifstream file("/proc/self/cmdline");
  std::string words, word;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0')) words += " " + shell_quoted(word);
  return words;
}

void run(CompareOptions& options) {
  CompareRequest& request = options.request;
  request.device = options.common->apply();
  if (request.config_name.empty()) request.config_name = shipped_file("configs/compare.json");
  request.config = effective_config(options);
  if (request.data.empty()) request.data = shipped_file("data/tinyshakespeare.txt");
  request.said = "cortado" + words_given();
  request.mixers = chosen_mixers(request.mixers);
  std::sort(request.depths.begin(), request.depths.end());
  request.stop = interrupt_requested;
  request.progress = !options.quiet;
  catch_interrupts();
  const Comparison result = compare(request);
  if (!result.rows.empty()) std::cout << "\n" << comparison_table(result.rows, request).text();
  if (!result.done) {
    std::cout << "stopped; continue with\n  " << program_name() << words_given() << std::endl;
    exit_if_interrupted();
  }
  std::cout << "also in " << request.out << "/table.md and table.json" << std::endl;
}

constexpr const char* kCompareFooter =
    "Mixers: every causal mechanism of `cortado mechanisms`, their variants, or all.\n"
    "The feed-forward width of each model is chosen so that parameter counts agree within 5 %. All models are trained\n"
    "on the same crops in the same order for the same number of steps. Speeds are measured at the end, in turns.\n"
    "Examples:\n"
    "  cortado compare --mixers softmax,linear,latte --steps 2000 --out runs/compare\n"
    "  cortado compare --mixers all --steps 500 --data book.txt --out runs/book\n"
    "After an interruption the same command continues; finished runs are not repeated.";

}  // namespace

void add_compare_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("compare", "Train the same model with several mixers, and compare them");
  auto options = std::make_shared<CompareOptions>();
  CompareRequest& request = options->request;
  request.out = "runs/compare";
  command->add_option("--mixers", request.mixers, "mixers, separated by commas, or all")->delimiter(',')->required();
  command->add_option("--config", request.config_name,
                      "the model; its mixer is replaced (default configs/compare.json)");
  command->add_option("--data", request.data,
                      "a text, or a folder made by `cortado prepare` (default Tiny Shakespeare)");
  command->add_option("--out", request.out, "folder of runs and table (default runs/compare)");
  command->add_option("--steps", options->steps, "steps of each run")->check(CLI::PositiveNumber);
  command->add_option("--batch", options->batch, "crops per batch")->check(CLI::PositiveNumber);
  command->add_option("--context", options->context, "tokens per crop")->check(CLI::PositiveNumber);
  option(*command, "--depths", request.depths, "depths at which decoding is timed (default 256,4096,65536)", kCommas,
         CLI::PositiveNumber);
  option(*command, "--set", options->settings, "change the config: dim=256 (repeatable)", kAssignments);
  command->add_flag("--bare", request.bare, "give no positions to mixers that see no order (default: sinusoidal ones)");
  command->add_flag("--quiet", options->quiet, "print only the table");
  command->footer(kCompareFooter);
  options->common = add_common_options(*command);
  command->callback([options] { run(*options); });
}

}  // namespace cortado
