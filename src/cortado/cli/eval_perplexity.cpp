// cortado eval ppl: perplexity of several models by context length.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cortado/base/chart.h"
#include "cortado/base/files.h"
#include "cortado/base/hash.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/signals.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/table.h"
#include "cortado/cli/several_models.h"
#include "cortado/evaluate/evaluate.h"

namespace cortado {
namespace {

struct PerplexityCommand {
  std::shared_ptr<SeveralModels> models;
  std::vector<int64_t> lengths = {256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  int64_t tokens = 16384;
  std::string data, svg;
  bool json = false;

  int64_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
  int64_t first() const { return longest() / 2; }
  int64_t count() const { return std::max(tokens, first()); }
};

at::Tensor read_tokens(const PerplexityCommand& command, const std::string& text, const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode(text);
  const auto count = static_cast<int64_t>(ids.size()), needed = command.first() + command.count();
  fail_input_if(count < needed, "[--data] ", command.data, " has ", with_commas(count), " tokens, ",
                with_commas(needed), " are needed: half the longest length plus the predicted tokens");
  return at::tensor(std::vector<int32_t>(ids.begin(), ids.begin() + needed), at::kLong);
}

// Returns the number of bytes of the predicted tokens' text.
double predicted_bytes(const at::Tensor& tokens, int64_t first, const Tokenizer& tokenizer) {
  const auto predicted = tokens.slice(0, first).to(at::kInt).contiguous();
  const auto* data = predicted.const_data_ptr<int32_t>();
  return static_cast<double>(tokenizer.decode({data, data + predicted.numel()}).size());
}

// The fields of a result that are read back.
struct PerplexityPoint {
  std::string model;
  int64_t length;
  double perplexity;
};

std::vector<PerplexityPoint> points_of(const ResultFile& file) {
  std::vector<PerplexityPoint> points;
  for (const Json& result : file.results()) {
    JsonReader reader(result, "--out");
    const auto perplexity = reader.optional_number("perplexity", 0, std::numeric_limits<double>::max());
    points.push_back({reader.text("model"), reader.integer("length", 2, std::numeric_limits<int64_t>::max()),
                      perplexity.value_or(HUGE_VAL)});  // JSON has no infinity and stores null
  }
  return points;
}

const PerplexityPoint* find_point(const std::vector<PerplexityPoint>& points, const std::string& model,
                                  int64_t length) {
  const auto found = std::find_if(points.begin(), points.end(), [&](const PerplexityPoint& point) {
    return point.model == model && point.length == length;
  });
  return found == points.end() ? nullptr : &*found;
}

Json measure(const PerplexityCommand& command, const OpenModel& opened, const at::Tensor& tokens, int64_t length) {
  ContextLossOptions options{.length = length, .first = command.first(), .count = command.count()};
  options.begin = command.models->options->begin(*opened.tokenizer);
  options.ranks = Ranks::world();
  ProgressBar reading({.label = concat(opened.name, ", length ", with_commas(length)),
                       .unit = "tokens",
                       .quiet = !options.ranks.first()});
  options.progress = [&](int64_t done, int64_t all) {
    if (interrupt_requested()) reading.finish();
    stop_if_interrupted(*command.models);
    reading.update_of(done, all);
  };
  const Stopwatch watch;
  const Evaluation result = evaluate_in_context(*opened.model, tokens, options);
  const double seconds = watch.seconds();
  const double bits = result.total / std::log(2.0) / predicted_bytes(tokens, command.first(), *opened.tokenizer);
  return {{"model", opened.name},
          {"length", length},
          {"tokens", result.tokens},
          {"loss", result.loss()},
          {"perplexity", result.perplexity()},
          {"bits_per_byte", bits},
          {"seconds", seconds}};
}

void print_perplexities(const ResultFile& file) {
  const auto points = points_of(file);
  std::set<int64_t> lengths;
  for (const PerplexityPoint& point : points) lengths.insert(point.length);
  std::vector<std::string> header = {"perplexity"};
  for (const int64_t length : lengths) header.push_back(with_commas(length));
  Table table(header);
  for (const auto& name : models_in(file)) {
    std::vector<std::string> row = {name};
    for (const int64_t length : lengths) {
      const PerplexityPoint* point = find_point(points, name, length);
      row.push_back(point ? fixed(point->perplexity, 2) : "");
    }
    table.add_row(row);
  }
  std::cout << table.text() << std::flush;
}

void draw(const ResultFile& file, const std::string& path) {
  LineChart chart{"Perplexity against context", "context length, tokens", "perplexity", true, true, {}};
  for (const auto& name : models_in(file)) {
    LineChart::Series series{name, {}};
    for (const PerplexityPoint& point : points_of(file)) {
      if (point.model == name) series.points.emplace_back(static_cast<double>(point.length), point.perplexity);
    }
    std::sort(series.points.begin(), series.points.end());
    chart.series.push_back(series);
  }
  write_file(path, chart.svg());
}

void run_perplexity(const PerplexityCommand& command) {
  const c10::InferenceMode inference;
  auto& models = *command.models;
  const Ranks& ranks = Ranks::world();
  std::string text;
  ranks.agree([&] {
    models.check();
    if (!command.svg.empty() && ranks.first()) check_output_file(command.svg);
    text = read_file(command.data);
  });
  ranks.require_same("text", hash_text(text));
  const auto opened_file = open_results(models.out);
  ResultFile& file = *opened_file;
  ranks.agree([&] {
    file.require("command", "eval ppl");
    file.require("text", hash_text(text));
    file.require("first token", command.first());
    file.require("tokens", command.count());
  });
  catch_interrupts();
  for (size_t i = 0; i < models.runs.size(); ++i) {
    const OpenModel opened = open_for(models, i, command.longest(), file);
    at::Tensor tokens;
    ranks.agree([&] { tokens = read_tokens(command, text, *opened.tokenizer); });
    for (const int64_t length : command.lengths) {
      if (find_point(points_of(file), opened.name, length)) continue;
      const Json measured = measure(command, opened, tokens, length);
      ranks.agree([&] { file.append({measured}); });
    }
  }
  if (!ranks.first()) return;
  if (!command.svg.empty()) draw(file, command.svg);
  if (command.json) {
    std::cout << Json(file.results()).dump() << std::endl;
  } else {
    print_perplexities(file);
  }
}

constexpr const char* kPerplexityFooter =
    "The predicted tokens are the same for every length L. Each is predicted from at least L/2 and less than L tokens\n"
    "before it: windows slide by half a length, and the first half of each window is only read. The predicted tokens\n"
    "begin half the longest length into the text. There are --tokens of them, or half the longest length if that is\n"
    "more. Long windows are read in pieces that continue from a state, so memory is that of the model's state. Before\n"
    "every window the model reads its begin token (BOS), if it has one; --no-bos leaves it out.\n"
    "Perplexities of different tokenizers can't be compared, but bits_per_byte (in --out and --json) can. Table and\n"
    "picture show everything that --out holds.\n\nExamples:\n"
    "  cortado eval ppl models/smollm2 --data book.txt --lengths 256,1024,4096,16384\n"
    "  cortado eval ppl models/smollm2 runs/converted --data book.txt --out ppl.jsonl --svg ppl.svg";

}  // namespace

void add_eval_perplexity_command(CLI::App& eval) {
  auto command = std::make_shared<PerplexityCommand>();
  auto& ppl = *eval.add_subcommand("ppl", "Measure perplexity by context length, as a table and a picture");
  ppl.footer(kPerplexityFooter);
  command->models = add_several_models(ppl);
  add_bos_option(ppl, command->models->options->bos);
  ppl.add_option("--data", command->data, "the text")->required();
  option(ppl, "--lengths", command->lengths, "context lengths, separated by commas", kCommas, kOneWord,
         CLI::Range(2, 1 << 30), kShown);
  option(ppl, "--tokens", command->tokens, "least number of tokens to predict",
         CLI::Range(int64_t{1}, int64_t{1} << 40), kShown);
  ppl.add_option("--svg", command->svg, "a file for a picture of the curves");
  ppl.add_flag("--json", command->json, "print a JSON list instead of the table");
  ppl.callback([command, &eval] {
    refuse_outer_options(eval, "ppl");
    keep_first(command->lengths);
    run_perplexity(*command);
  });
}

}  // namespace cortado
