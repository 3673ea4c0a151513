// What every command needs: this brings CLI11, the errors and the list of commands, too.
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

// Tokens of a model whose config leaves them to the tokenizer, for what needs no text.
inline constexpr int64_t kAssumedVocabulary = 256;

// Options that are added to a command while this lives stand in that group of its help.
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

// Adds an option, with what else holds of it after its help: checks (CLI::Range), and any of those below.
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
inline constexpr auto kShown = [](CLI::Option* it) { it->capture_default_str(); };  // its default, in the help
inline constexpr auto kRequired = [](CLI::Option* it) { it->required(); };
inline constexpr auto kCommas = [](CLI::Option* it) { it->delimiter(','); };  // between values
inline constexpr auto kRepeated = [](CLI::Option* it) { it->take_all(); };
inline constexpr auto kOneWord = [](CLI::Option* it) { it->allow_extra_args(false); };  // at a time
inline constexpr auto kAssignments = [](CLI::Option* it) { it->allow_extra_args(false)->type_name("KEY=VALUE"); };
inline auto kind(const char* name) {  // of value, in the help
  return [name](CLI::Option* it) { it->type_name(name); };
}

struct CommonOptions {
  std::string device = "cpu";        // "cpu", "cuda", "cuda:1", ...
  int64_t threads = 0;               // 0: torch's choice, one a core
  std::optional<std::string> dtype;  // "float32", "bfloat16", "float16"; absent: the command's own default
  std::optional<int64_t> seed;       // absent: the command's own default

  // Sets the number of threads and returns the device. A device that this torch doesn't have: InputError.
  at::Device apply() const;
  at::ScalarType dtype_or(at::ScalarType fallback) const;
  int64_t seed_or(int64_t fallback) const { return seed.value_or(fallback); }
};

// Adds --device, --threads, --dtype, --seed and --version to a command. The values are there when its callback runs:
//
//   auto common = add_common_options(*command);
//   command->callback([common] { const at::Device device = common->apply(); ... });
std::shared_ptr<CommonOptions> add_common_options(CLI::App& command);

// "--feature-map" of an option "feature_map".
std::string flag_of(const std::string& name);
// Adds the options of all of them, each once; what was given is in `values`, by name, when the callback runs.
void add_mechanism_options(CLI::App& command, const std::vector<OptionOwner>& owners, Json& values);

// Adds --memory and its options to a command, for models whose layers can run with another memory. The value (none
// without --memory) is there when its callback runs; options without --memory: InputError.
struct MemoryOptions {
  Memory memory;
  const CLI::App* command = nullptr;
  std::optional<Memory> chosen() const;
  std::string flags() const;  // as they were given: "--memory lola --cache 256", or "no --memory"
};
std::shared_ptr<MemoryOptions> add_memory_options(CLI::App& command);

// Adds --weights: what a model's matrices are kept in.
void add_weights_option(CLI::App& command, std::optional<std::string>& weights);
// Adds --no-bos: whether a text begins with the marks that its model expects there.
void add_bos_option(CLI::App& command, bool& bos);
// Adds --temperature, --top-k, --top-p, --min-p and --repetition-penalty, which stand before what the model's own files say.
inline constexpr const char* kSamplingGroup = "Sampling";
void add_sampling_options(CLI::App& command, SamplingChoice& choice);
// Adds --kv-type: the type of growing caches of keys and values.
void add_cache_option(CLI::App& command, std::optional<std::string>& type);
WeightFormat weight_format_or_plain(const std::optional<std::string>& weights);

// A trained model that a command reads.
struct ModelOptions {
  std::string run;
  std::string checkpoint = "best";
  std::shared_ptr<MemoryOptions> memory;
  std::optional<std::string> weights;  // of commands with --weights
  std::optional<std::string> kv_type;  // of commands with --kv-type
  bool bos = true;                     // of commands with --no-bos
  std::shared_ptr<CommonOptions> common;

  // Before the others: a pretrained model of another program becomes a run (imported.h).
  void find();
  // With the chosen memory.
  ModelConfig config() const;
  // On the common options' device, with their threads and type (default float32).
  std::shared_ptr<LanguageModel> open() const;
  std::shared_ptr<Tokenizer> tokenizer() const { return load_tokenizer(run + "/tokenizer"); }
  // What stands before a text and before a part of one: the tokenizer's marks, none with --no-bos.
  std::vector<int32_t> begin(const Tokenizer& tokenizer) const;
};

// What the positional argument of a command that opens a model may be, for its help.
inline constexpr const char* kModelHelp =
    "a run's folder, as `cortado train`, `import` or `linearize` makes it; a GGUF file; or a Hugging Face model's "
    "folder";

// Adds the positional RUN, --checkpoint, the memory's and the common options. With `runs`, several RUNs, which go
// there.
std::shared_ptr<ModelOptions> add_model_options(CLI::App& command, std::vector<std::string>* runs = nullptr);

// What a run is called that nobody has named: the last part of its path.
std::string run_name(const std::string& run);
// InputError naming `model`: it has fewer rows than its tokenizer has tokens.
void check_tokenizer(const std::string& model, const Tokenizer& tokenizer, int64_t rows);

// Ends the program with the signal's exit code if Ctrl-C or SIGTERM came. For commands that called catch_interrupts().
void exit_if_interrupted();
// The same, saying first how the work ended.
void exit_if_interrupted(const std::exception& end);

// `write` fills a folder beside `out`, which then takes its place. In use or not writable: InputError, before anything
// is done. The first Ctrl-C asks `write` to end with a Failure (base/signals.h) and ends the program. After that,
// and after any error, nothing is left behind.
void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write);

// Where a file that ships with the project lies ("data/tinyshakespeare.txt"): $CORTADO_SHARE, the installed share
// folder beside the program, or the source tree. InputError when it is in none.
std::string shipped_file(const std::string& name);

// Says where a run was stopped, and the command that goes on with it: steps, seed and type are in the run's own config,
// only what is not part of the run has to be said again.
void print_stopped(const std::string& command, const std::string& out, int64_t step, int64_t steps,
                   const CommonOptions& common);

// How this program was called, quoted for a shell where needed, for commands that it tells the user to type.
std::string program_name();
std::string shell_quoted(const std::string& word);

std::string version_line();  // "cortado 0.1.0 (ba470ef1c2)"

}  // namespace cortado
