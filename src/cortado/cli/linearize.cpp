// cortado linearize: converts a pretrained softmax model to linear time.
#include "cortado/convert/linearize.h"

#include <set>

#include "cortado/base/human.h"
#include "cortado/base/memory.h"
#include "cortado/base/signals.h"
#include "cortado/base/table.h"
#include "cortado/cli/common.h"
#include "cortado/cli/imported.h"
#include "cortado/convert/weights.h"
#include "cortado/mechanisms/registry.h"
#include "cortado/nn/dtype.h"
#include "cortado/nn/matmul.h"
#include "cortado/parallel/ranks.h"

namespace cortado {
namespace {

constexpr const char* kMixerGroup = "The new mixer";

struct LinearizeCommand {
  CLI::App* app = nullptr;
  LinearizeRequest request;
  std::string method;
  Json settings = Json::object();  // the methods' options that were given
  std::optional<int64_t> tokens;
  std::optional<std::string> weights, from;
  std::optional<double> learning_rate;
  bool resume = false, overwrite = false, quiet = false;
  std::shared_ptr<CommonOptions> common;
};

void allow_only(const LinearizeCommand& command, const std::set<std::string>& allowed, const std::string& why) {
  for (const CLI::Option* option : command.app->get_options()) {
    fail_input_if(option->count() > 0 && !allowed.contains(option->get_name()), why, ": leave ", option->get_name(),
                  " out");
  }
}

// Resuming keeps everything as it was; only the output folder and where to compute may be given.
void check_resume(const LinearizeCommand& command) {
  allow_only(command, {"--out", "--resume", "--stop-at", "--quiet", "--threads", "--device", "--help"},
             "[--resume] keeps all settings");
}

// Returns the mechanisms that can replace a softmax layer, the usual one first.
std::vector<const Mechanism*> methods() {
  std::vector<const Mechanism*> found;
  for (const Mechanism* mechanism : mechanisms()) {
    if (!mechanism->substitute) continue;
    found.insert(mechanism->substitute->usual ? found.begin() : found.end(), mechanism);
  }
  return found;
}

// Returns the given options that can still be changed after training.
Json said_later(const LinearizeCommand& command) {
  Json said = Json::object();
  for (const Mechanism* method : methods()) {
    for (const MechanismOption& option : method->substitute->options) {
      if (option.later && command.settings.contains(option.name)) said[option.key()] = command.settings[option.name];
    }
  }
  return said;
}

// Applies what another conversion of the same weights learned, without training.
void apply(const LinearizeCommand& command) {
  std::set<std::string> allowed{"MODEL", "--checkpoint", "--from", "--out", "--overwrite", "--threads", "--help"};
  const Json said = said_later(command);
  for (const auto& [key, value] : said.items()) allowed.insert("--" + key);
  allow_only(command, allowed, "[--from] without --tokens, --lora-tokens or --cross-entropy-tokens trains nothing");
  const LinearizePlan& plan = command.request.plan;
  fail_input_if(plan.source.empty(), "[linearize] which model? `cortado linearize MODEL --from FILE --out DIR`");
  apply_learned({.source = run_of(plan.source),
                 .which = plan.which,
                 .learned = *command.from,
                 .out = command.request.out,
                 .use = command.request.use,
                 .settings = said});
  std::cout << "written to " << command.request.out << std::endl;
}

void refuse(const LinearizeCommand& command, const std::set<std::string>& options, const std::string& why) {
  for (const CLI::Option* option : command.app->get_options()) {
    fail_input_if(option->count() > 0 && options.contains(option->get_name()), "[", option->get_name(), "] ", why);
  }
}

std::vector<std::string> method_names() {
  std::vector<std::string> names;
  for (const Mechanism* method : methods()) names.push_back(method->name);
  return names;
}

const Mechanism& chosen_method(const LinearizeCommand& command) {
  fail_input_if(command.method.empty(), "[--method] this build has no mechanism that can replace softmax layers");
  const Mechanism& method = find_mechanism(command.method);
  fail_input_if(!method.substitute, "[--method] ", method.name, " cannot replace softmax layers");
  return method;
}

// Refuses options that belong to another method.
void check_method(const LinearizeCommand& command) {
  const SoftmaxSubstitute& method = *chosen_method(command).substitute;
  std::set<std::string> others;
  for (const auto& [name, value] : command.settings.items()) others.insert(flag_of(name));
  for (const MechanismOption& option : method.options) others.erase(flag_of(option.name));
  if (!method.next_token) others.insert({"--cross-entropy-tokens", "--cross-entropy-rate"});
  refuse(command, others, "does not go with --method " + command.method);
}

// Refuses options of stages that do not run, because they would have no effect.
void check_stages(const LinearizeCommand& command) {
  const LinearizePlan& plan = command.request.plan;
  const auto check = [&](int64_t tokens, const std::string& stage, const std::set<std::string>& options) {
    if (tokens == 0) refuse(command, options, "needs " + stage + ": that stage is left out");
  };
  check(plan.transfer.tokens, "--tokens", {"--learning-rate", "--weights"});
  check(plan.cross_entropy.tokens, "--cross-entropy-tokens", {"--cross-entropy-rate"});
  check(plan.cross_entropy.tokens + plan.lora.tokens, "--cross-entropy-tokens or --lora-tokens", {"--bptt"});
  check(plan.lora.tokens, "--lora-tokens", {"--lora-rank", "--lora-alpha", "--lora-targets", "--lora-rate"});
}

Json mixer_settings(const LinearizeCommand& command) {
  Json mixer = {{"mixer", command.method}};
  for (const MechanismOption& option : chosen_method(command).substitute->options) {
    const Json value = command.settings.value(option.name, option.fallback);
    if (!value.is_null()) mixer[option.key()] = value;
  }
  return mixer;
}

// Returns the conversion of --from, with the options that were given.
Learned begun_with(const LinearizeCommand& command) {
  Learned learned = load_learned(*command.from);
  learned.conversion.mixer.update(said_later(command));
  return learned;
}

bool said(const LinearizeCommand& command, const char* option) { return command.app->count(option) > 0; }

// Whether a conversion with --from trains anything; if not, the file is applied as it is.
bool trains(const LinearizeCommand& command) {
  const LinearizePlan& plan = command.request.plan;
  if (command.tokens.value_or(0) > 0 || plan.lora.tokens > 0 || plan.cross_entropy.tokens > 0) return true;
  if (said(command, "--cache-tokens") || said(command, "--sink-tokens")) return true;
  const Learned learned = begun_with(command);
  return learned.conversion.with_cache() && !have_scores(learned.weights);
}

// Sets the conversion from the options, or from the file given by --from.
void choose_conversion(LinearizeCommand& command) {
  LinearizePlan& plan = command.request.plan;
  if (command.from) {
    for (const CLI::Option* option : command.app->get_options()) {
      const bool later = said_later(command).contains(option->get_name().substr(2));
      fail_input_if(option->count() > 0 && option->get_group() == kMixerGroup && !later,
                    "[--from] determines the new mixer: leave ", option->get_name(), " out");
    }
    plan.from = *command.from;
    const Learned learned = begun_with(command);
    plan.conversion = learned.conversion;
    command.method = plan.conversion.mixer.value("mixer", "");
    plan.cache_again = said(command, "--cache-tokens");
    return;
  }
  plan.conversion.mixer = mixer_settings(command);
}

void complete_plan(LinearizeCommand& command) {
  LinearizePlan& plan = command.request.plan;
  fail_input_if(plan.source.empty(), "[linearize] which model? `cortado linearize MODEL --out DIR`");
  plan.source = run_of(plan.source);
  choose_conversion(command);
  check_method(command);
  const SoftmaxSubstitute& method = *chosen_method(command).substitute;
  if (!plan.conversion.with_cache()) {
    std::set<std::string> of_caches{"--cache-tokens"};
    for (const MechanismOption& option : method.options) {
      if (option.needs == "cache") of_caches.insert(flag_of(option.name));
    }
    refuse(command, of_caches, "needs --cache");
  }
  if (!plan.conversion.with_latents()) refuse(command, {"--sink-tokens"}, "needs latents, as --method macchiato has");
  plan.transfer.tokens = command.tokens.value_or(command.from ? 0 : -1);
  check_stages(command);
  plan.transfer.learning_rate = command.learning_rate.value_or(method.learning_rate);
  for (StageOptions* stage : {&plan.cross_entropy, &plan.lora}) {
    stage->batch = plan.transfer.batch;
    stage->accumulate = plan.transfer.accumulate;
    stage->evaluate_every = plan.transfer.evaluate_every;
  }
  if (command.app->get_option("--lora-targets")->count() == 0) {
    for (const auto& [softmax, own] : method.renamed) {
      std::replace(plan.adapters.targets.begin(), plan.adapters.targets.end(), softmax, own);
    }
  }
  plan.seed = command.common->seed_or(plan.seed);
  const bool on_cpu = command.request.device.is_cpu();
  if (command.common->dtype) {
    plan.dtype = *command.common->dtype;
  } else if (on_cpu && !command.weights) {
    plan.dtype = dtype_name(fast_training_type());
  }
  plan.weights = command.weights.value_or(on_cpu && plan.dtype == "float32" ? "int8" : "plain");
  if (plan.instructions.empty()) {
    refuse(command, {"--evaluation-examples"}, "needs --instructions");
    if (plan.data.empty()) plan.data = {shipped_file("data/tinyshakespeare.txt")};
  } else {
    refuse(command, {"--data", "--evaluation-chunks"}, "does not go with --instructions");
  }
}

void print_result(const LinearizeCommand& command, const LinearizeResult& result) {
  if (!result.done) {
    return print_stopped("linearize", command.request.out, result.step, result.steps, *command.common);
  }
  Table table({"stage", "tokens", "time", "tokens/s", "loss before", "loss after", "best step"});
  for (const StageReport& stage : result.stages) {
    table.add_row({stage.name, with_commas(stage.tokens), human_seconds(stage.seconds),
                   stage.seconds > 0 ? fixed(static_cast<double>(stage.tokens) / stage.seconds, 0) : "",
                   fixed(stage.total_before, 4), fixed(stage.total_after, 4), with_commas(stage.best_step)});
  }
  if (const auto& cache = result.cache) {
    std::cout << "cache: the scores of " << cache->heads << " key heads explain " << fixed(100 * cache->lasting, 0)
              << " % of the variance of attention in reminders, " << fixed(100 * cache->fading, 0) << " % in text; "
              << human_seconds(cache->seconds) << std::endl;
  }
  if (result.sinks) std::cout << "sinks: " << with_commas(*result.sinks) << " latents hold only the first token\n";
  std::cout << (result.stages.empty() ? "" : table.text()) << "written to " << command.request.out << std::endl;
}

void run_linearize(LinearizeCommand& command) {
  LinearizeRequest& request = command.request;
  fail_input_if(command.resume && command.overwrite, "[linearize] --resume and --overwrite exclude each other");
  request.device = command.common->apply();
  keep_freed_memory();
  const bool again = goes_on_after_a_loss({request.out});
  if (command.resume || again) {
    if (!again) check_resume(command);
    request.use = FolderUse::kResume;
  } else {
    if (command.overwrite) request.use = FolderUse::kOverwrite;
    if (command.from && !trains(command)) return apply(command);
    const Ranks& ranks = Ranks::world();
    ranks.agree([&] { complete_plan(command); });
    for (std::string* measured : {&request.plan.dtype, &request.plan.weights}) {
      *measured = ranks.gather(*measured)[0];  // the processes may have measured different types to be faster
    }
  }
  request.stop = interrupt_requested;
  request.progress = !command.quiet;
  catch_interrupts();
  const LinearizeResult result = linearize(request);
  if (Ranks::world().first()) print_result(command, result);
  if (!result.done) exit_if_interrupted();
}

constexpr const char* kLinearizeFooter =
    "Attention transfer: the queries, keys and values of every softmax layer stay. The other parameters of the new\n"
    "mixer (feature maps and window factors, or latents) learn to reproduce the output of softmax attention. Only\n"
    "these get gradients, so memory stays near that of inference. DIR is then a run like any other.\n\n"
    "Examples:\n"
    "  cortado import SmolLM2-135M-Instruct.Q4_1.gguf --out runs/smollm2\n"
    "  cortado linearize runs/smollm2 --method macchiato --cache 256 --cross-entropy-tokens 750000 --data book.txt "
    "--out runs/memory\n"
    "  cortado linearize runs/smollm2 --data book.txt --tokens 1500000 --out runs/linear      LoLCATs' feature maps\n"
    "  cortado linearize runs/smollm2 --from learned.safetensors --out runs/linear    what another conversion "
    "learned\n"
    "  cortado linearize runs/smollm2 --from learned.safetensors --lora-tokens 500000 --out runs/tuned\n"
    "  cortado linearize --resume --out runs/linear           continues exactly where it stopped\n"
    "  cortado linearize runs/smollm2 --keep 0,15 --lora-tokens 500000 --out runs/hybrid\n"
    "  cortado linearize runs/smollm2 --from macchiato.safetensors --cache 256 --data book.txt --out runs/one\n"
    "Ctrl-C and SIGTERM finish the step, save, print the command that continues, and end with exit code 130 or 143.";

void add_mixer_options(CLI::App& app, LinearizeCommand& command) {
  const HelpGroup group(app, kMixerGroup);
  std::string help;
  std::vector<OptionOwner> owners;
  for (const Mechanism* method : methods()) {
    help += concat(help.empty() ? "" : "; ", method->name, ": ", method->substitute->help);
    owners.push_back({method->name, method->substitute->options});
  }
  app.add_option("--method", command.method, help)->check(CLI::IsMember(method_names()))->capture_default_str();
  add_mechanism_options(app, owners, command.settings);
  option(app, "--keep", command.request.plan.conversion.keep, "softmax layers that stay, separated by commas", kCommas);
}

void add_training_options(CLI::App& app, LinearizeCommand& command) {
  const HelpGroup group(app, "Training");
  LinearizePlan& plan = command.request.plan;
  StageOptions& transfer = plan.transfer;
  const auto number = [&](const char* name, int64_t& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  option(app, "--data", plan.data, "a text file; may be given several times (default Tiny Shakespeare)", kOneWord,
         kRepeated);
  app.add_option(
      "--instructions", plan.instructions,
      "instead of --data: instructions with answers in Alpaca's format (JSON or JSON Lines); next-token training "
      "learns only the answers");
  number("--context", plan.context, "tokens per sequence");
  number("--cache-tokens", plan.cache_tokens,
         "tokens from which a cache's scores are learned; with --from they are learned again");
  app.add_option("--sink-tokens", plan.sink_tokens,
                 "tokens of text to find the latents that hold only the first token and to keep them from filling up; "
                 "0: skip this")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  option(app, "--tokens", command.tokens, "tokens of attention transfer (default: two epochs of the text)",
         CLI::NonNegativeNumber);
  number("--batch", transfer.batch, "sequences per pass");
  number("--accumulate", transfer.accumulate, "passes per step");
  option(app, "--learning-rate", command.learning_rate,
         "initial learning rate of attention transfer, lowered on plateaus (default: the method's)",
         CLI::PositiveNumber);
  option(app, "--weights", command.weights,
         "format of the frozen matrices during attention transfer: plain (as --dtype) or int8 (default on a CPU: "
         "plain bfloat16 if it multiplies that clearly faster than float32, otherwise int8)",
         CLI::IsMember({"plain", "int8"}));
  number("--evaluate-every", transfer.evaluate_every, "steps between evaluations, each of which saves a checkpoint");
  number("--evaluation-chunks", plan.evaluation_chunks, "sequences to evaluate on, from the text's beginning");
  number("--evaluation-examples", plan.evaluation_examples,
         "with --instructions: number of examples, from the beginning, to evaluate on");
}

// Adds the options of the later stages, which only run if they are given tokens.
void add_later_stages(CLI::App& app, LinearizeCommand& command) {
  const HelpGroup group(app, "Next-token training");
  LinearizePlan& plan = command.request.plan;
  plan.cross_entropy.learning_rate = 6e-4;
  plan.lora.learning_rate = 1e-4;
  const auto tokens = [&](const char* name, StageOptions& stage, const char* help) {
    app.add_option(name, stage.tokens, help)->check(CLI::NonNegativeNumber);
  };
  const auto rate = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::PositiveNumber)->capture_default_str();
  };
  tokens("--cross-entropy-tokens", plan.cross_entropy,
         "tokens to train the new parameters on, for methods with this stage");
  rate("--cross-entropy-rate", plan.cross_entropy.learning_rate, "AdamW's learning rate in this stage");
  app.add_option("--bptt", plan.bptt,
                 "truncate backpropagation to this many tokens of a sequence; states are carried on (default: all)")
      ->check(CLI::PositiveNumber);
  tokens("--lora-tokens", plan.lora,
         "tokens to train low-rank adapters on, with all else frozen; they are merged into the weights");
  rate("--lora-rate", plan.lora.learning_rate, "AdamW's learning rate in this stage");
  option(app, "--lora-rank", plan.adapters.rank, "rank of the adapters", CLI::Range(1, 65536), kShown);
  rate("--lora-alpha", plan.adapters.alpha, "alpha of the adapters, which are scaled by alpha / rank");
  option(app, "--lora-targets", plan.adapters.targets, "linear maps with adapters, by name, separated by commas",
         kCommas, kShown);
}

}  // namespace

void add_linearize_command(CLI::App& app) {
  auto command = std::make_shared<LinearizeCommand>();
  auto& subcommand = *app.add_subcommand("linearize", "Convert a softmax model to linear time");
  command->app = &subcommand;
  const auto names = method_names();
  command->method = names.empty() ? "" : names.front();
  subcommand.add_option("MODEL", command->request.plan.source, concat("a model with softmax layers: ", kModelHelp));
  option(subcommand, "--checkpoint", command->request.plan.which, "checkpoint of MODEL: best or last",
         CLI::IsMember({"best", "last"}), kShown);
  subcommand.add_option("--out", command->request.out, "the folder to write")->required()->type_name("DIR");
  add_mixer_options(subcommand, *command);
  add_training_options(subcommand, *command);
  add_later_stages(subcommand, *command);
  option(subcommand, "--from", command->from,
         "the learned.safetensors of another conversion of MODEL, from which the stages with tokens start; if no stage "
         "has tokens, nothing is trained",
         CLI::ExistingFile);
  subcommand.add_flag("--resume", command->resume, "resume the conversion in the folder");
  subcommand.add_flag("--overwrite", command->overwrite, "delete the run in the folder first");
  option(subcommand, "--stop-at", command->request.stop_at, "stop after this step as Ctrl-C would",
         CLI::PositiveNumber);
  subcommand.add_flag("--quiet", command->quiet, "show no progress bar");
  subcommand.footer(kLinearizeFooter);
  command->common = add_common_options(subcommand);
  subcommand.callback([command] { run_linearize(*command); });
}

}  // namespace cortado
