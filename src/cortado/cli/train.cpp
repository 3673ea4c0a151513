// cortado train: trains a model from a config and a text.
#include <filesystem>

#include "cortado/base/human.h"
#include "cortado/base/signals.h"
#include "cortado/cli/common.h"
#include "cortado/cli/imported.h"
#include "cortado/models/config.h"
#include "cortado/parallel/ranks.h"
#include "cortado/train/run.h"

namespace cortado {
namespace {

struct TrainOptions {
  TrainRequest request;
  std::vector<std::string> settings;
  bool resume = false, overwrite = false, quiet = false;
  std::optional<int64_t> steps, lora;
  std::shared_ptr<CommonOptions> common;
};

// Sets the adapters' rank, and their usual learning rate unless the config names one.
void start_lora(Json& config, int64_t rank) {
  set(config, "training.lora.rank", rank);
  if (config["training"].contains("learning_rate")) return;
  set(config, "training.learning_rate", 1e-4);
  set(config, "training.minimum_rate", 1e-5);
}

// Returns the config of CONFIG; null: the resumed run's own.
Json named_config(const TrainOptions& options, std::string& name) {
  if (name.empty()) {
    fail_input_if(!options.resume, "[train] which model? `cortado train CONFIG --out RUN`");
    return nullptr;
  }
  // CONFIG may be a run: training starts from its model and weights.
  name = run_of(name);
  const bool base = std::filesystem::is_directory(name);
  Json config = read_json_file(base ? RunFolder{name}.config() : name);
  if (base) set(config, "training.base", name);
  return config;
}

// Applies --lora, --set, --steps, --seed and --dtype.
void change_config(const TrainOptions& options, Json& config) {
  if (options.lora) start_lora(config, *options.lora);
  for (const std::string& setting : options.settings) apply_setting(config, setting);
  if (options.steps) set(config, "training.steps", *options.steps);
  if (options.common->seed) set(config, "training.seed", *options.common->seed);
  if (options.common->dtype) set(config, "training.dtype", *options.common->dtype);
}

std::string data_of(const TrainOptions& options) {
  const Json& config = options.request.config;
  if (!options.request.data.empty() || config.is_null() || options.resume)
    return options.request.data;  // a resumed run keeps its data
  const auto training = config.find("training");
  const bool named =
      training != config.end() && training->is_object() && training->contains("data") && (*training)["data"] != "";
  return named ? "" : shipped_file("data/tinyshakespeare.txt");
}

void report(const TrainOptions& options, const TrainResult& result) {
  const TrainerState& state = result.state;
  if (!result.done) return print_stopped("train", options.request.out, state.step, result.steps, *options.common);
  std::cout << "trained " << state.step << " steps in " << human_seconds(state.seconds);
  if (std::isfinite(state.best_loss)) {
    std::cout << "; validation loss " << fixed(state.validation_loss, 4) << ", best " << fixed(state.best_loss, 4)
              << " after step " << state.best_step;
  }
  std::cout << "; " << options.request.out << std::endl;
}

void train(TrainOptions& options) {
  TrainRequest& request = options.request;
  request.device = options.common->apply();
  fail_input_if(options.resume && options.overwrite, "[train] --resume and --overwrite exclude each other");
  if (options.resume) request.use = FolderUse::kResume;
  if (options.overwrite) request.use = FolderUse::kOverwrite;
  if (goes_on_after_a_loss({request.out})) request.use = FolderUse::kResume;
  request.config = named_config(options, request.config_name);
  if (request.config.is_null()) {
    request.change = [&options](Json& config) { change_config(options, config); };
  } else {
    change_config(options, request.config);
  }
  request.data = data_of(options);
  request.stop = interrupt_requested;
  request.progress = !options.quiet;
  catch_interrupts();
  const TrainResult result = train_run(request);
  if (Ranks::world().first()) report(options, result);
  if (!result.done) exit_if_interrupted();
}

constexpr const char* kTrainFooter =
    "Examples:\n"
    "  cortado train configs/nanogpt-cpu.json --out runs/first\n"
    "  cortado train configs/hgrn2.json --data book.txt --out runs/book \\\n"
    "      --set training.steps=5000 --set dropout=0.1\n"
    "  cortado train --resume --out runs/book                 continues exactly where it stopped\n"
    "  cortado train --resume --out runs/book --steps 10000   continues up to this step\n"
    "  cortado train runs/smollm2 --lora 8 --data book.txt --out runs/tuned   fine-tunes low-rank adapters of a run\n"
    "  torchrun --nproc-per-node 2 -m cortado train CONFIG --out RUN   on two processes (docs/scale.md)\n"
    "Ctrl-C and SIGTERM finish the step, save, print the command that continues, and end with exit code 130 or 143.\n"
    "RUN gets config.json, tokenizer/, best.safetensors, last.safetensors, metrics.jsonl and the checkpoint of "
    "--resume.";

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a model on a text");
  auto options = std::make_shared<TrainOptions>();
  command->add_option("CONFIG", options->request.config_name,
                      "the model and how to train it (JSON), or a run to start from; with --resume the run's own");
  command->add_option("--data", options->request.data,
                      "a text, or a folder made by `cortado prepare` (default Tiny Shakespeare)");
  command->add_option("--out", options->request.out, "the run's folder")->required();
  option(*command, "--set", options->settings, "change the config: training.batch=32, mixer.window=65 (repeatable)",
         kAssignments);
  option(*command, "--lora", options->lora,
         "train only adapters of this rank; they are merged into the weights, and also stored separately",
         CLI::Range(1, 65536));
  command->add_flag("--resume", options->resume, "resume the run in the folder");
  command->add_flag("--overwrite", options->overwrite, "delete the run in the folder first");
  option(*command, "--steps", options->steps, "train up to this step (the config's \"training.steps\")",
         CLI::NonNegativeNumber);
  option(*command, "--stop-at", options->request.stop_at,
         "stop after this step as Ctrl-C would; the schedule is unchanged", CLI::NonNegativeNumber);
  command->add_flag("--share-optimizer", options->request.share_optimizer,
                    "with several processes, each keeps only the optimiser's moments of its part of the weights");
  option(*command, "--context-parallel", options->request.context_parts,
         "number of processes that share each sequence, each with a part of its tokens", CLI::Range(1, 65536));
  command->add_flag("--quiet", options->quiet, "show no progress bar");
  command->footer(kTrainFooter);
  options->common = add_common_options(*command);
  command->callback([options] { train(*options); });
}

}  // namespace cortado
