// cortado analyze: analyses of models and mechanisms, as numbers, a table and pictures.
#include "cortado/analyze/analyze.h"

#include <algorithm>

#include "cortado/base/files.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/cli/common.h"
#include "cortado/compare/compare.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

constexpr int kMostTokens = 4096;  // of a text: pictures and tables have an entry per pair of tokens

// How a finding is shown.
struct Shown {
  bool json = false;
  std::string out;

  void show(const Finding& finding) const {
    if (!out.empty()) {
      write_output_folder(out, [&](const std::string& folder) {
        write_file(folder + "/finding.json", finding.json.dump() + "\n");
        write_file(folder + "/table.md", finding.table.markdown());
        for (const auto& [name, svg] : finding.pictures) write_file(folder + "/" + name + ".svg", svg);
      });
    }
    std::cout << (json ? finding.json.dump() + "\n" : finding.table.text()) << std::flush;
    if (!json && !out.empty()) std::cout << "pictures and numbers are in " << out << std::endl;
  }
};

void add_shown(CLI::App& command, Shown& shown) {
  command.add_flag("--json", shown.json, "print the numbers as JSON instead of the table");
  command.add_option("--out", shown.out, "a new folder for finding.json, table.md and the pictures");
}

//  --- Analyses of a text. ---

struct TextCommand {
  std::shared_ptr<ModelOptions> model;
  std::string text, file;
  int64_t tokens = 64, example = 0, heads = 4;
  std::vector<int64_t> layers;
  CollisionOptions collisions;
  SpectrumOptions spectrum;
  Shown shown;
};

void add_text_options(CLI::App& command, TextCommand& options) {
  options.model = add_model_options(command);
  add_bos_option(command, options.model->bos);
  CLI::Option* text = command.add_option("--text", options.text, "the text (default: Tiny Shakespeare's beginning)");
  command.add_option("--file", options.file, "a file with the text")->excludes(text);
  option(command, "--example", options.example, "for a model trained on a task: the index of a test example",
         CLI::NonNegativeNumber);
  option(command, "--tokens", options.tokens, "tokens of the text to analyze", CLI::Range(2, kMostTokens), kShown);
  option(command, "--layers", options.layers, "layers, from 0, separated by commas (default: all)", kCommas, kOneWord);
  option(command, "--heads", options.heads, "heads to draw per layer", CLI::Range(1, 1024), kShown);
  add_shown(command, options.shown);
}

struct ReadText {
  std::vector<int32_t> tokens;
  std::vector<std::string> names;
};

// Makes white space visible, for a picture's axis.
std::string visible(const std::string& piece) {
  std::string shown;
  for (const char c : piece) shown += c == '\n' ? "\u23ce" : c == ' ' ? "\u2423" : std::string(1, c);
  return shown;
}

ReadText text_for(const TextCommand& options, const ModelConfig& config) {
  ReadText read;
  if (!config.task.is_null() && !config.task.empty()) {
    const auto task = open_task(config.task, "task");
    fail_input_if(options.example >= task->size(Split::kTest), "[--example] the task has ", task->size(Split::kTest),
                  " test examples");
    const Example example = task->example(Split::kTest, options.example);
    fail_input_if(example.tokens.empty(), "[analyze] the task's examples are numbers, not tokens");
    read.tokens.assign(example.tokens.begin(), example.tokens.end());
    for (const auto token : read.tokens) read.names.push_back(std::to_string(token));
  } else {
    const auto tokenizer = options.model->tokenizer();
    const std::string text =
        !options.text.empty()
            ? options.text
            : read_file(options.file.empty() ? shipped_file("data/tinyshakespeare.txt") : options.file);
    read.tokens = options.model->begin(*tokenizer);
    // No token is longer than 64 characters in practice, so the rest of the text is not needed.
    const auto most = size_t(options.tokens) * 64;
    const auto encoded = tokenizer->encode(text.size() > most ? text.substr(0, most) : text);
    read.tokens.insert(read.tokens.end(), encoded.begin(), encoded.end());
    for (const int32_t token : read.tokens) read.names.push_back(visible(tokenizer->piece(token)));
  }
  const auto count = std::min(read.tokens.size(), size_t(options.tokens));
  fail_input_if(count < 2, "[analyze] a text of at least two tokens is needed");
  read.tokens.resize(count);
  read.names.resize(count);
  return read;
}

void analyze_text(const TextCommand& options, const std::function<Finding(Reading)>& analyze) {
  options.model->find();
  const auto model = options.model->open();
  fail_input_if(!model->config().causal, "[analyze] a bidirectional model has no past");
  model->eval();
  ReadText read = text_for(options, model->config());
  const at::Tensor tokens = at::tensor(std::vector<int64_t>(read.tokens.begin(), read.tokens.end())).unsqueeze(0);
  options.shown.show(analyze({*model, tokens.to(model->device()), std::move(read.names), options.layers}));
}

void add_text_command(CLI::App& analyze, const std::string& name, const std::string& about, const std::string& footer,
                      const std::function<Finding(const TextCommand&, Reading)>& find,
                      const std::function<void(CLI::App&, TextCommand&)>& more = {}) {
  auto options = std::make_shared<TextCommand>();
  auto& command = *analyze.add_subcommand(name, about);
  command.footer(footer);
  add_text_options(command, *options);
  if (more) more(command, *options);
  command.callback(
      [options, find] { analyze_text(*options, [&](Reading reading) { return find(*options, std::move(reading)); }); });
}

void add_text_commands(CLI::App& analyze) {
  add_text_command(
      analyze, "attention", "Draw the weights that a model's mixers give to past tokens",
      "Any mechanism whose output is a weighted sum of values has such weights, with softmax or without. They are the\n"
      "derivative of the output with respect to the values. Recurrences weigh each channel differently: of these, the\n"
      "mean over the channels is drawn.\n\n"
      "Examples:\n  cortado analyze attention runs/first --text \"To be, or not to be\" --out runs/attention\n"
      "  cortado analyze attention runs/linear --memory lola --chunk 16 --cache 16 --layers 0,5",
      [](const TextCommand& options, const Reading& reading) { return analyze_attention(reading, options.heads); });
  add_text_command(
      analyze, "latents", "Draw which latent states a model's tokens choose",
      "Shows p(l|t) by layer and head. State 0 is the window, if there is one. The usage entropy is that of the mean\n"
      "of p(l|t) over the tokens: 1 if all states are used equally, 0 if only one is used (collapse).\n\n"
      "Examples:\n"
      "  cortado analyze latents runs/macchiato --tokens 25 --out runs/latents",
      [](const TextCommand& options, const Reading& reading) { return analyze_latents(reading, options.heads); });
  add_text_command(
      analyze, "collisions", "Measure how pairs in a linear state corrupt one another",
      "Measures the error with which the linear state returns the value of a stored key, for every stored pair after\n"
      "every token: with the state alone, behind a window, and behind a window with a cache of the pairs with the\n"
      "largest errors.\n\n"
      "Examples:\n  cortado analyze collisions runs/linear --tokens 256 --window-pairs 32 --cache-pairs 32 --layers 0",
      [](const TextCommand& options, const Reading& reading) {
        CollisionOptions collisions = options.collisions;
        collisions.heads = options.heads;
        return analyze_collisions(reading, collisions);
      },
      [](CLI::App& command, TextCommand& options) {
        option(command, "--window-pairs", options.collisions.window, "pairs in the window", CLI::Range(1, 1 << 20),
               kShown);
        option(command, "--cache-pairs", options.collisions.cache, "pairs in the cache", CLI::Range(0, 1 << 20),
               kShown);
      });
}

void add_spectrum_command(CLI::App& analyze) {
  auto options = std::make_shared<TextCommand>();
  auto& command =
      *analyze.add_subcommand("spectrum", "Measure the rank that kernels need: singular values of Gram matrices");
  command.footer(
      "Analyses random vectors (exponential and polynomial kernels) or, with a RUN, the keys that its layers map for\n"
      "a linear state. The least error of a rank is a lower bound for every feature map with that many features.\n\n"
      "Examples:\n"
      "  cortado analyze spectrum --n 128,256,512 --d 16,64,128 --out runs/spectrum\n"
      "  cortado analyze spectrum runs/linear --tokens 256 --layers 0");
  add_text_options(command, *options);
  command.get_option("run")->required(false);
  const auto numbers = [&](const char* name, std::vector<int64_t>& values, const char* about, int64_t most) {
    option(command, name, values, about, kCommas, kOneWord, CLI::Range(int64_t{1}, most), kShown);
  };
  numbers("--n", options->spectrum.n, "numbers of vectors", 8192);
  numbers("--d", options->spectrum.d, "sizes of vectors", 1 << 16);
  numbers("--powers", options->spectrum.powers, "powers of the polynomial kernels", 64);
  command.callback([options] {
    options->spectrum.seed = options->model->common->seed_or(0);
    if (options->model->run.empty()) {
      options->shown.show(analyze_spectrum(options->spectrum));
      return;
    }
    analyze_text(*options, [&](Reading reading) {
      options->spectrum.reading = std::make_unique<Reading>(std::move(reading));
      return analyze_spectrum(options->spectrum);
    });
  });
}

//  --- Analyses of configs. ---

struct MixersCommand {
  std::vector<std::string> mixers;
  std::string config;
  std::vector<std::string> settings;
  int64_t softmax_every = 0;
  MemoryComparison memory;
  ScalingOptions scaling;
  Shown shown;
  std::shared_ptr<CommonOptions> common;
};

// Parses "latte:latents=64:heads=2" to a mixer's settings.
Json mixer_of(const std::string& words, int64_t latents, bool causal) {
  const size_t end = std::min(words.find(':'), words.size());
  Json mixer = mixer_settings(words.substr(0, end), latents, causal);
  for (size_t at = end; at < words.size();) {
    const size_t next = std::min(words.find(':', at + 1), words.size());
    apply_setting(mixer, words.substr(at + 1, next - at - 1));
    at = next;
  }
  return mixer;
}

// Returns one config per mixer. Every layer gets the mixer, or every n-th layer softmax attention.
std::vector<std::pair<std::string, Json>> configs_of(const MixersCommand& options) {
  Json base = read_json_file(options.config.empty() ? shipped_file("configs/compare.json") : options.config);
  for (const std::string& setting : options.settings) apply_setting(base, setting);
  if (!base.contains("vocabulary")) base["vocabulary"] = kAssumedVocabulary;
  if (options.mixers.empty()) return {{base.value("name", "model"), base}};
  fail_input_if(!base.contains("layers") || !base["layers"].is_number_integer() || !base.contains("dim"),
                "[--mixers] the config's \"layers\" must be a number: every layer gets the mixer");
  std::vector<std::pair<std::string, Json>> configs;
  for (const std::string& words : options.mixers) {
    const std::string name = words.substr(0, words.find(':'));
    Json config = with_mixer(base, name, base["dim"].get<int64_t>());
    config["mixer"] = mixer_of(words, base["dim"].get<int64_t>(), base.value("causal", true));
    if (options.softmax_every > 1) {
      config["layers"] = {{{"repeat", options.softmax_every - 1}, {"mixer", config["mixer"]}},
                          {{"mixer", mixer_settings(comparable_mixers().front(), 1)}}};
      config["repeat_layers"] = std::max<int64_t>(1, base["layers"].get<int64_t>() / options.softmax_every);
      config.erase("mixer");
    }
    configs.emplace_back(words, config);
  }
  return configs;
}

void add_mixers_options(CLI::App& command, MixersCommand& options, std::vector<int64_t>& lengths) {
  option(command, "--mixers", options.mixers, "mixers, separated by commas, with settings: softmax,latte:latents=64",
         kCommas, kOneWord);
  command.add_option("--config", options.config, "the model; its mixer is replaced (default configs/compare.json)");
  command.add_option("--set", options.settings, "change the config: dim=1024 (repeatable)")->allow_extra_args(false);
  option(command, "--softmax-every", options.softmax_every, "make a hybrid: every N-th layer is softmax attention",
         CLI::Range(2, 1024));
  option(command, "--lengths", lengths, "tokens, separated by commas", kCommas, kOneWord, CLI::Range(1, 1 << 30),
         kShown);
  add_shown(command, options.shown);
  options.common = add_common_options(command);
}

void add_memory_command(CLI::App& analyze) {
  auto options = std::make_shared<MixersCommand>();
  auto& command = *analyze.add_subcommand("memory", "Compare the state sizes of mixers at each length");
  command.footer(
      "Counts for one sequence: key-value pairs per head, the mean over the layers (a linear state counts as its\n"
      "numbers divided by 2d); and floats and bytes of all layers, in float32.\n\n"
      "Examples:\n"
      "  cortado analyze memory --mixers softmax,sliding_window:window=128,latte\n"
      "  cortado analyze memory --mixers gla --softmax-every 4 --lengths 4096,131072");
  add_mixers_options(command, *options, options->memory.lengths);
  command.callback([options] {
    options->common->apply();
    options->memory.configs = configs_of(*options);
    options->shown.show(analyze_memory(options->memory));
  });
}

void add_scaling_command(CLI::App& analyze) {
  auto options = std::make_shared<MixersCommand>();
  auto& command = *analyze.add_subcommand("scaling", "Measure time and memory of mixers by sequence length, in turns");
  command.footer(
      "Measures a model with random weights and each mixer: the forward pass, forward and backward, and one token\n"
      "decoded after --lengths tokens. A pass has --tokens tokens, so there are fewer long sequences than short\n"
      "ones; or it has --sequences sequences. Mixers take turns; the table has the median and the quartiles of\n"
      "--rounds. --set causal=false measures bidirectional forms, which have no decoding.\n\n"
      "Examples:\n"
      "  cortado analyze scaling --mixers softmax,latte,macchiato --lengths 256,1024,4096\n"
      "  cortado analyze scaling --mixers latte:latents=32,latte:latents=128 --lengths 5000 --tokens 5000 --set "
      "layers=1");
  add_mixers_options(command, *options, options->scaling.lengths);
  option(command, "--tokens", options->scaling.tokens, "tokens per pass", CLI::Range(1, 1 << 30), kShown);
  command.add_option("--sequences", options->scaling.sequences, "sequences per pass, instead of --tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->excludes("--tokens");
  option(command, "--rounds", options->scaling.rounds, "measurements of each pass", CLI::Range(1, 1000), kShown);
  command.add_flag("!--forward-only", options->scaling.backward, "no backward pass");
  command.callback([options] {
    options->common->apply();
    catch_interrupts();
    ScalingOptions& scaling = options->scaling;
    scaling.models = configs_of(*options);
    scaling.stop = interrupt_requested;
    const auto steps = int64_t(scaling.lengths.size() * scaling.models.size()) * (scaling.rounds + 1);
    ProgressBar bar({.label = "scaling", .total = steps, .unit = "passes"});
    int64_t done = 0;
    scaling.progress = [&](const std::string& what) { bar.update(++done, what); };
    const Finding finding = analyze_scaling(scaling);
    bar.finish();
    options->shown.show(finding);
    exit_if_interrupted();
  });
}

void add_convolution_command(CLI::App& analyze) {
  struct ConvolutionCommand {
    std::string mixer;
    std::vector<std::string> settings;
    int64_t tokens = 128;
    Shown shown;
    std::shared_ptr<CommonOptions> common;
  };
  auto options = std::make_shared<ConvolutionCommand>();
  auto& command = *analyze.add_subcommand("convolution", "Draw what the slots of a mechanism hold of past tokens");
  command.footer(
      "For mechanisms whose slots hold tokens by their positions only, such as Blurry Window Attention.\n\n"
      "Examples:\n  cortado analyze convolution --set slots=17 --set period=34 --tokens 64 --out runs/convolution");
  command.add_option("--mixer", options->mixer, "the mechanism (default: the first of this kind)");
  command.add_option("--set", options->settings, "change a setting of the mechanism: decay=false (repeatable)")
      ->allow_extra_args(false);
  command.add_option("--tokens", options->tokens, "tokens read")->check(CLI::Range(1, 65536))->capture_default_str();
  add_shown(command, options->shown);
  options->common = add_common_options(command);
  command.callback([options] {
    options->common->apply();
    Json settings = Json::object();
    for (const std::string& setting : options->settings) apply_setting(settings, setting);
    options->shown.show(analyze_convolution(options->mixer, settings, options->tokens));
  });
}

}  // namespace

void add_analyze_command(CLI::App& app) {
  auto& analyze =
      *app.add_subcommand("analyze", "Look into models and mechanisms: tables and pictures of what they do");
  analyze.footer(
      "Each analysis prints a table. --json prints the numbers instead; --out DIR writes both and the pictures "
      "(SVG).\n\n"
      "Examples:\n  cortado analyze attention runs/first --out runs/attention\n"
      "  cortado analyze memory --mixers softmax,gla,latte\n"
      "  cortado analyze ANALYSIS --help");
  analyze.require_subcommand(1);
  add_text_commands(analyze);
  add_spectrum_command(analyze);
  add_memory_command(analyze);
  add_scaling_command(analyze);
  add_convolution_command(analyze);
}

}  // namespace cortado
