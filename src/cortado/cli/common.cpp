#include "cortado/cli/common.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cortado/base/files.h"
#include "cortado/base/memory.h"
#include "cortado/base/signals.h"
#include "cortado/base/version.h"
#include "cortado/base/words.h"
#include "cortado/cli/imported.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/dtype.h"

namespace cortado {

namespace fs = std::filesystem;

at::Device CommonOptions::apply() const {
  if (threads > 0) at::set_num_threads(static_cast<int>(threads));
  at::Device chosen(at::kCPU);
  try {
    chosen = at::Device(device);
  } catch (const c10::Error&) {
    throw InputError(concat("[--device] \"", device, "\" is not a device; examples: cpu, cuda, cuda:1"));
  }
  fail_input_if(chosen.is_cuda() && !at::hasCUDA(), "[--device] ", device,
                ": this torch has no CUDA, or there is no GPU");
  // Tries the device at once: a wrong device number would otherwise fail somewhere deep in the work.
  try {
    at::zeros({1}, at::TensorOptions(chosen));
  } catch (const c10::Error&) {
    throw InputError(concat("[--device] ", device, " can't be used: there is no such device here"));
  }
  return chosen;
}

at::ScalarType CommonOptions::dtype_or(at::ScalarType fallback) const { return dtype ? dtype_of(*dtype) : fallback; }

static CLI::IsMember one_of_types() { return CLI::IsMember({"float32", "bfloat16", "float16"}); }

std::shared_ptr<CommonOptions> add_common_options(CLI::App& command) {
  auto options = std::make_shared<CommonOptions>();
  const HelpGroup group(command, "Common");
  command.add_option("--device", options->device, "cpu, cuda, cuda:1 (default cpu)");
  option(command, "--threads", options->threads,
         "number of threads (default: one per core; choose 1 if other programs need the cores)", CLI::Range(1, 4096));
  command.add_option("--dtype", options->dtype, "float32, bfloat16 or float16")->check(one_of_types());
  command.add_option("--seed", options->seed, "seed of every random draw")->check(CLI::NonNegativeNumber);
  command.set_version_flag("--version", version_line(), "print the version");
  return options;
}

void add_weights_option(CLI::App& command, std::optional<std::string>& weights) {
  const HelpGroup group(command, "Common");
  option(command, "--weights", weights,
         "store weight matrices as int4, int8, bfloat16 or float16; --dtype remains the type of computation",
         CLI::IsMember(weight_format_names()));
}

void add_cache_option(CLI::App& command, std::optional<std::string>& type) {
  const HelpGroup group(command, "Common");
  option(command, "--kv-type", type,
         "store the keys and values of softmax layers and of macchiato's caches as float32, bfloat16 or float16 "
         "(default: as --dtype)",
         one_of_types());
}

void add_sampling_options(CLI::App& command, SamplingChoice& choice) {
  const HelpGroup group(command, kSamplingGroup);
  command.add_option("--temperature", choice.temperature,
                     "0: always the likeliest token (defaults of all sampling options: those of the model's "
                     "generation_config.json; otherwise 0.8, top-k 40, top-p 0.95, min-p 0.05 for chat models, 1 for "
                     "others)");
  command.add_option("--top-k", choice.top_k, "only the k likeliest tokens; 0: all");
  command.add_option("--top-p", choice.top_p, "only the likeliest tokens that together have probability p");
  command.add_option("--min-p", choice.min_p, "only tokens at least this fraction as likely as the likeliest");
  command.add_option("--repetition-penalty", choice.repetition_penalty, "above 1: recent tokens become less likely");
}

void add_bos_option(CLI::App& command, bool& bos) {
  command.add_flag_callback(
      "--no-bos", [&bos] { bos = false; }, "put no begin token (BOS) before a text, even if the model expects one");
}

WeightFormat weight_format_or_plain(const std::optional<std::string>& weights) {
  return weights ? weight_format_of(*weights) : WeightFormat::kPlain;
}

std::shared_ptr<ModelOptions> add_model_options(CLI::App& command, std::vector<std::string>* runs) {
  auto options = std::make_shared<ModelOptions>();
  if (runs) {
    command.add_option("run", *runs, concat("each ", kModelHelp))->required();
  } else {
    command.add_option("run", options->run, kModelHelp)->required();
  }
  option(command, "--checkpoint", options->checkpoint, "best or last", CLI::IsMember({"best", "last"}), kShown);
  options->memory = add_memory_options(command);
  options->common = add_common_options(command);
  return options;
}

std::string flag_of(const std::string& name) {
  std::string flag = "--" + name;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

namespace {

// Joins the owners' help texts of an option: "pairs in the window; lola: of single tokens (default: a 64, b 129)".
std::string help_of(const std::vector<OptionOwner>& owners, const std::string& name) {
  std::vector<std::pair<std::string, std::string>> texts;  // text, owners
  std::string defaults;
  for (const OptionOwner& owner : owners) {
    for (const MechanismOption& option : owner.options) {
      if (option.name != name) continue;
      auto same = std::find_if(texts.begin(), texts.end(), [&](const auto& text) { return text.first == option.help; });
      if (same == texts.end()) same = texts.insert(texts.end(), {option.help, ""});
      same->second += concat(same->second.empty() ? "" : ", ", owner.name);
      if (option.fallback.is_null()) continue;
      const Json& value = option.fallback;
      defaults += concat(defaults.empty() ? "" : ", ", owner.name, " ",
                         value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  std::string help;
  for (const auto& [text, whose] : texts) help += concat(help.empty() ? "" : "; ", whose, ": ", text);
  return defaults.empty() ? help : help + " (default: " + defaults + ")";
}

void add_option(CLI::App& command, const MechanismOption& option, const std::string& help, Json& values) {
  const std::string flag = flag_of(option.name);
  const auto put = [&values, name = option.name](const auto& value) { values[name] = value; };
  if (!option.words.empty()) {
    command.add_option_function<std::string>(flag, put, help)
        ->check(CLI::IsMember(option.words))
        ->transform([earlier = option.earlier](const std::string& word) {
          const auto renamed = earlier.find(word);
          return renamed == earlier.end() ? word : renamed->second;
        });
  } else if (option.whole) {
    const CLI::Range range(static_cast<int64_t>(option.low), static_cast<int64_t>(option.high));
    command.add_option_function<int64_t>(flag, put, help)->check(range);
  } else {
    command.add_option_function<double>(flag, put, help)->check(CLI::Range(option.low, option.high));
  }
}

void replace_folder(const fs::path& place, const std::function<void(const std::string&)>& write) {
  TemporaryDirectory work(place.parent_path().string(), "." + place.filename().string() + ".cortado-");
  write(work.path());
  if (interrupt_requested()) throw Failure(concat("[", place.string(), "] stopped: nothing is written"));
  fs::permissions(work.path(), fs::status(place).permissions());
  std::error_code error;
  fs::rename(work.path(), place, error);
  if (error) throw Failure(concat("[", place.string(), "] cannot be written: ", error.message()));
  work.release();
}

}  // namespace

void add_mechanism_options(CLI::App& command, const std::vector<OptionOwner>& owners, Json& values) {
  std::set<std::string> added;
  for (const OptionOwner& owner : owners) {
    for (const MechanismOption& option : owner.options) {
      if (added.insert(option.name).second) add_option(command, option, help_of(owners, option.name), values);
    }
  }
}

std::optional<Memory> MemoryOptions::chosen() const {
  if (!memory.kind.empty()) return memory;
  for (const auto& [name, value] : memory.options.items()) {
    throw InputError(concat("[memory] ", flag_of(name), " needs --memory"));
  }
  return std::nullopt;
}

constexpr const char* kMemoryGroup = "Memory";

std::string MemoryOptions::flags() const {
  std::string text;
  for (const CLI::Option* option : command->get_options()) {
    if (option->get_group() != kMemoryGroup || option->count() == 0) continue;
    text += concat(text.empty() ? "" : " ", option->get_name(), " ", option->results().back());
  }
  return text.empty() ? "no --memory" : text;
}

std::shared_ptr<MemoryOptions> add_memory_options(CLI::App& command) {
  auto options = std::make_shared<MemoryOptions>();
  options->command = &command;
  const HelpGroup group(command, kMemoryGroup);
  const auto kinds = memory_kinds();
  command.add_option("--memory", options->memory.kind, "the memory of a converted model: " + alternatives(kinds))
      ->check(CLI::IsMember(kinds));
  add_mechanism_options(command, memory_options(), options->memory.options);
  return options;
}

void ModelOptions::find() { run = run_of(run, weight_format_or_plain(weights)); }

ModelConfig ModelOptions::config() const {
  const auto chosen = memory->chosen();
  const ModelConfig stored = read_config(run);
  return chosen ? with_memory(stored, *chosen) : stored;
}

std::shared_ptr<LanguageModel> ModelOptions::open() const {
  return open_as(format_to_infer(run, weight_format_or_plain(weights)));
}

std::shared_ptr<LanguageModel> ModelOptions::open_whole() const { return open_as(WeightFormat::kPlain); }

std::shared_ptr<LanguageModel> ModelOptions::open_as(WeightFormat format) const {
  keep_freed_memory();
  auto model = open_model(run, {.which = checkpoint,
                                .device = common->apply(),
                                .dtype = common->dtype_or(at::kFloat),
                                .memory = memory->chosen(),
                                .weights = format});
  if (kv_type) model->set_cache_type(dtype_of(*kv_type));
  return model;
}

std::vector<int32_t> ModelOptions::begin(const Tokenizer& tokenizer) const {
  return bos ? tokenizer.special().prefix : std::vector<int32_t>();
}

std::string run_name(const std::string& run) {
  const auto whole = fs::absolute(run).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void check_tokenizer(const std::string& model, const Tokenizer& tokenizer, int64_t rows) {
  const int64_t tokens = tokenizer.vocabulary();
  fail_input_if(tokens > rows, "[", model, "] the tokenizer has ", tokens, " tokens, the model only ", rows);
}

void exit_if_interrupted() {
  if (interrupt_requested()) throw CLI::RuntimeError(interrupt_exit_code());
}

void exit_if_interrupted(const std::exception& end) {
  if (interrupt_requested()) std::cerr << "cortado: " << end.what() << std::endl;
  exit_if_interrupted();
}

void write_output_folder(const std::string& out, const std::function<void(const std::string&)>& write) {
  std::error_code ignored;
  std::vector<fs::path> made;  // created by claiming, innermost first
  for (fs::path at = out; !at.empty() && !fs::exists(at, ignored); at = at.parent_path()) made.push_back(at);
  claim_output_directory(out, /*refuse_used=*/true);
  catch_interrupts();
  try {
    replace_folder(fs::canonical(out), write);
  } catch (const std::exception& failure) {
    for (const fs::path& folder : made) fs::remove(folder, ignored);  // they are empty
    exit_if_interrupted(failure);
    throw;
  }
}

std::string shipped_file(const std::string& name) {
  std::vector<fs::path> folders;
  if (const char* share = std::getenv("CORTADO_SHARE")) folders.emplace_back(share);
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) folders.push_back(program.parent_path().parent_path() / "share" / "cortado");
  folders.emplace_back(CORTADO_SOURCE);
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name, error)) return (folder / name).string();
  }
  throw InputError(concat("[", name, "] is not where it was installed (", folders.front().string(),
                          "); name a file with --data, or set CORTADO_SHARE"));
}

void print_stopped(const std::string& command, const std::string& out, int64_t step, int64_t steps,
                   const CommonOptions& common) {
  std::cout << "stopped after step " << step << " of " << steps << "; continue with\n  " << program_name() << " "
            << command << " --resume --out " << shell_quoted(out);
  if (common.device != "cpu") std::cout << " --device " << shell_quoted(common.device);
  if (common.threads > 0) std::cout << " --threads " << common.threads;
  std::cout << std::endl;
}

std::string version_line() {
  return concat("cortado ", kVersion, *kCommit ? concat(" (", kCommit, ")") : std::string());
}

std::string shell_quoted(const std::string& word) {
  const bool plain =
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./:=,@") ==
      std::string::npos;
  if (plain && !word.empty()) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string program_name() {
  std::ifstream command("/proc/self/cmdline");
  std::string name;
  std::getline(command, name, '\0');
  return name.empty() ? "cortado" : shell_quoted(name);
}

}  // namespace cortado
