// Shared by all commands. Also includes CLI11, the errors and the list of commands.
#pragma once

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/cli/commands.h"
#include "cortado/generate/defaults.h"
#include "cortado/models/language_model.h"
#include "cortado/models/memory.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado {

// The assumed vocabulary of a model whose config leaves it to the tokenizer, for commands that need no text.
inline constexpr int64_t kAssumedVocabulary = 256;

// During its lifetime, options added to the command appear in that group of its help.
class HelpGroup {
 public:
  HelpGroup(CLI::App& command, const char* name) : command_(command), before_(*command.option_defaults()) {
    command.option_defaults()->group(name);
  }
  ~HelpGroup() { *command_.option_defaults() = before_; }
  HelpGroup(const HelpGroup&) = delete;
  HelpGroup& operator=(const HelpGroup&) = delete;

 private:
  CLI::App& command_;
  CLI::OptionDefaults before_;
};

// Adds an option. `traits` are checks (CLI::Range) and any of the functions below.
template <typename Value, typename... Traits>
CLI::Option* option(CLI::App& command, const std::string& names, Value& value, const std::string& help,
                    const Traits&... traits) {
  CLI::Option* added = command.add_option(names, value, help);
  const auto give = [added](const auto& trait) {
    if constexpr (std::is_invocable_v<decltype(trait), CLI::Option*>) {
      trait(added);
    } else {
      added->check(trait);
    }
  };
  (give(traits), ...);
  return added;
}
inline constexpr auto kShown = [](CLI::Option* it) { it->capture_default_str(); };  // shows the default in the help
inline constexpr auto kRequired = [](CLI::Option* it) { it->required(); };
inline constexpr auto kCommas = [](CLI::Option* it) { it->delimiter(','); };  // values are separated by commas
inline constexpr auto kRepeated = [](CLI::Option* it) { it->take_all(); };
// One value per occurrence of the option.
inline constexpr auto kOneWord = [](CLI::Option* it) { it->allow_extra_args(false); };
inline constexpr auto kAssignments = [](CLI::Option* it) { it->allow_extra_args(false)->type_name("KEY=VALUE"); };
inline auto kind(const char* name) {  // the name of the value in the help
  return [name](CLI::Option* it) { it->type_name(name); };
}

// The options that every command has.
struct CommonOptions {
  std::string device = "cpu";        // "cpu", "cuda", "cuda:1", ...
  int64_t threads = 0;               // 0: torch's choice, one per core
  std::optional<std::string> dtype;  // "float32", "bfloat16", "float16"; absent: the command's own default
  std::optional<int64_t> seed;       // absent: the command's own default

  // Sets the number of threads and returns the device. Throws InputError for a device that this torch does not have.
  at::Device apply() const;
  at::ScalarType dtype_or(at::ScalarType fallback) const;
  int64_t seed_or(int64_t fallback) const { return seed.value_or(fallback); }
};

// Adds --device, --threads, --dtype, --seed and --version to a command. The values are set when its callback runs:
//
//   auto common = add_common_options(*command);
//   command->callback([common] { const at::Device device = common->apply(); ... });
std::shared_ptr<CommonOptions> add_common_options(CLI::App& command);

// Converts an option's name to its flag: "feature_map" to "--feature-map".
std::string flag_of(const std::string& name);
// Adds the options of all owners, each option once. When the callback runs, `values` holds the given ones by name.
void add_mechanism_options(CLI::App& command, const std::vector<OptionOwner>& owners, Json& values);

// Adds --memory and its options to a command, for models whose layers can use another memory. The value is set when the
// callback runs; none without --memory. Options of a memory without --memory throw InputError.
struct MemoryOptions {
  Memory memory;
  const CLI::App* command = nullptr;
  std::optional<Memory> chosen() const;
  std::string flags() const;  // as given: "--memory lola --cache 256", or "no --memory"
};
std::shared_ptr<MemoryOptions> add_memory_options(CLI::App& command);

// Adds --weights: the format of a model's matrices.
void add_weights_option(CLI::App& command, std::optional<std::string>& weights);
// Adds --no-bos: no begin token before a text.
void add_bos_option(CLI::App& command, bool& bos);
// Adds --temperature, --top-k, --top-p, --min-p and --repetition-penalty, which override the model's own defaults.
inline constexpr const char* kSamplingGroup = "Sampling";
void add_sampling_options(CLI::App& command, SamplingChoice& choice);
// Adds --kv-type: the type of cached keys and values.
void add_cache_option(CLI::App& command, std::optional<std::string>& type);
WeightFormat weight_format_or_plain(const std::optional<std::string>& weights);

// The options of a command that opens a trained model.
struct ModelOptions {
  std::string run;
  std::string checkpoint = "best";
  std::shared_ptr<MemoryOptions> memory;
  std::optional<std::string> weights;  // for commands with --weights
  std::optional<std::string> kv_type;  // for commands with --kv-type
  bool bos = true;                     // for commands with --no-bos
  std::shared_ptr<CommonOptions> common;

  // Replaces a pretrained model of another program by a run made from it (imported.h). Call it before the functions
  // below.
  void find();
  // Returns the config with the chosen memory.
  ModelConfig config() const;
  // Opens the model for inference on the common options' device, with their threads and type (default float32).
  // open_whole: with its weights in their own types, to write them elsewhere.
  std::shared_ptr<LanguageModel> open() const;
  std::shared_ptr<LanguageModel> open_whole() const;
  std::shared_ptr<Tokenizer> tokenizer() const { return load_tokenizer(run + "/tokenizer"); }
  // Returns the tokens to put before a text: the tokenizer's begin tokens, or none with --no-bos.
  std::vector<int32_t> begin(const Tokenizer& tokenizer) const;

 private:
  std::shared_ptr<LanguageModel> open_as(WeightFormat format) const;
};

// The help text of the positional argument of a command that opens a model.
inline constexpr const char* kModelHelp =
    "a run's folder (made by `cortado train`, `import` or `linearize`), a GGUF file, or a Hugging Face model's folder";

// Adds the positional RUN, --checkpoint, the memory's and the common options. With `runs`, accepts several RUNs and
// stores them there.
std::shared_ptr<ModelOptions> add_model_options(CLI::App& command, std::vector<std::string>* runs = nullptr);

// Returns the default name of a run: the last part of its path.
std::string run_name(const std::string& run);
// Throws InputError, naming `model`, if the tokenizer has more tokens than the model's vocabulary has rows.
void check_tokenizer(const std::string& model, const Tokenizer& tokenizer, int64_t rows);

// Ends the program with the signal's exit code after Ctrl-C or SIGTERM. For commands that called catch_interrupts().
void exit_if_interrupted();
// Prints the error first.
void exit_if_interrupted(const std::exception& end);

// Calls `write` to fill a temporary folder, which then becomes `out`. Throws InputError, before any work, if `out` is
// in use or not writable. The first Ctrl-C asks `write` to end with a Failure (base/signals.h) and ends the program.
// After an interrupt or an error nothing is left behind.
void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write);

// Returns the path of a file that ships with the project ("data/tinyshakespeare.txt"): in $CORTADO_SHARE, in the
// installed share folder beside the program, or in the source tree. Throws InputError if it is in none of these.
std::string shipped_file(const std::string& name);

// Prints where a run was stopped and the command that resumes it. Steps, seed and type are in the run's own config, so
// the command only repeats what is not part of the run.
void print_stopped(const std::string& command, const std::string& out, int64_t step, int64_t steps,
                   const CommonOptions& common);

// Returns how this program was called, quoted for a shell, for commands that it suggests to the user.
std::string program_name();
std::string shell_quoted(const std::string& word);

std::string version_line();  // "cortado 0.2.0 (ba470ef1c2)"

}  // namespace cortado
