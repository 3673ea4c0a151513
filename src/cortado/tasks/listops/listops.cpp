// ListOps of Long Range Arena: the value of a long nested expression (README.md).
#include <algorithm>
#include <array>
#include <limits>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/tasks/draws.h"
#include "cortado/tasks/listops/expression.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct ListopsOptions {
  std::string folder;  // with basic_{train,val,test}.tsv of lra_release; empty: examples are drawn
  int64_t examples = 96000, validation_examples = 2000, test_examples = 2000;
  int64_t depth = 10, arguments = 10;    // at most
  int64_t shorter = 2000, longer = 500;  // lengths lie strictly between these bounds
  int64_t seed = 0;

  void fields(JsonFields& json) {
    json.text("folder", folder);
    json.integer("examples", examples, 1, kMostExamples);
    json.integer("validation_examples", validation_examples, 1, kMostExamples);
    json.integer("test_examples", test_examples, 1, kMostExamples);
    json.integer("depth", depth, 2, 1000);
    json.integer("arguments", arguments, 2, 1000);
    json.integer("shorter", shorter, 6, kMostExamples);
    json.integer("longer", longer, 0, shorter - 2);
    json.integer("seed", seed, 0, std::numeric_limits<int64_t>::max());
  }
};

constexpr double kOperatorShare = 0.25;  // probability of an operator, except at the greatest depth

const std::string& file_of(Split split) {
  static const std::array<std::string, 3> names = {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"};
  return names[size_t(split)];
}

// Appends a random tree; returns false if it has become too long.
bool grow(const ListopsOptions& options, Draws& draws, int64_t depth, std::vector<int64_t>& tokens) {
  if (int64_t(tokens.size()) >= options.shorter) return false;
  if (depth >= options.depth || draws.uniform() > kOperatorShare) {
    tokens.push_back(draws.below(10));
    return true;
  }
  tokens.push_back(draws.between(kMin, kSum));
  for (int64_t left = draws.between(2, options.arguments); left > 0; --left) {
    if (!grow(options, draws, depth + 1, tokens)) return false;
  }
  tokens.push_back(kClose);
  return true;
}

Example example_of(std::vector<int64_t> tokens) {
  Example example;
  example.label = listops_value(tokens).value();
  example.tokens = std::move(tokens);
  return example;
}

Json statistics_of(const TaskExamples& task, int64_t count) {
  count = std::min(count, task.size(Split::kTrain));
  std::vector<double> lengths;
  std::array<double, 10> labels{};
  double depth = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Example it = task.example(Split::kTrain, i);
    lengths.push_back(double(it.tokens.size()));
    labels[size_t(it.label)] += 1 / double(count);
    int64_t open = 0, deepest = 0;
    for (const int64_t token : it.tokens) {
      open += token == kClose ? -1 : token >= kMin ? 1 : 0;
      deepest = std::max(deepest, open);
    }
    depth += double(deepest) / double(count);
  }
  std::sort(lengths.begin(), lengths.end());
  Json found = {{"length", 0.0}};
  for (const double length : lengths) found["length"] = found["length"].get<double>() + length / double(count);
  for (const int percent : {5, 25, 50, 75, 95}) {
    found[concat("length_p", percent)] = lengths[size_t(double(percent) / 100 * double(count - 1))];
  }
  found["depth"] = depth;
  for (size_t label = 0; label < labels.size(); ++label) found[concat("label_", label)] = labels[label];
  return found;
}

class ListopsTask : public TaskExamples {
 public:
  explicit ListopsTask(const ListopsOptions& options) : options_(options) {}
  std::unique_ptr<Scores> scores(Split) const override { return class_scores(); }
  Json statistics(int64_t count) const override { return statistics_of(*this, count); }
  std::vector<Published> published() const override;
  std::string drawn(const Example& example) const override {
    return concat(listops_text(example.tokens), " = ", example.label, "\n");
  }

 protected:
  const ListopsOptions options_;
};

// From an independent implementation of the public generator.
std::vector<Published> ListopsTask::published() const {
  const ListopsOptions usual;
  if (options_.depth != usual.depth || options_.arguments != usual.arguments || options_.shorter != usual.shorter ||
      options_.longer != usual.longer) {
    return {};
  }
  std::vector<Published> known = {{"length", 1039, 30},    {"length_p5", 540, 15},   {"length_p25", 706, 30},
                                  {"length_p50", 961, 50}, {"length_p75", 1315, 60}, {"length_p95", 1805, 40},
                                  {"depth", 9, 0.001},     {"label_0", 0.17, 0.025}, {"label_9", 0.167, 0.025}};
  for (int label = 1; label < 9; ++label) known.push_back({concat("label_", label), 0.083, 0.025});
  return known;
}

class DrawnListops : public ListopsTask {
 public:
  explicit DrawnListops(const ListopsOptions& options) : ListopsTask(options) {
    for (const auto& [name, split] : kSplits) streams_.emplace_back(uint64_t(options.seed), "listops " + name);
  }
  TaskShape shape() const override {
    return {.vocabulary = kListopsTokens, .classes = 10, .length = options_.shorter - 1};
  }
  int64_t size(Split split) const override {
    return std::array{options_.examples, options_.validation_examples, options_.test_examples}[size_t(split)];
  }
  Example example(Split split, int64_t index) const override {
    Draws draws(streams_[size_t(split)], index);
    for (std::vector<int64_t> tokens;; tokens.clear()) {
      if (grow(options_, draws, 1, tokens) && int64_t(tokens.size()) < options_.shorter &&
          int64_t(tokens.size()) > options_.longer) {
        return example_of(std::move(tokens));
      }
    }
  }

 private:
  std::vector<RandomStream> streams_;  // one per split
};

// Reads rows of "Source\tTarget" after a header line. Lines end as Python's csv writes them (\r\n), or with \n.
std::vector<Example> read_listops(const std::string& path) {
  const std::string text = read_file(path);
  std::vector<Example> examples;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const auto wrong = [&](const char* what) { throw InputError(concat("[", path, "] line ", number, ": ", what)); };
    if (++number == 1) {
      if (line != "Source\tTarget") wrong("expected \"Source\", a tab and \"Target\"");
      continue;
    }
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos || line.size() != tab + 2) wrong("expected an expression, a tab and a digit");
    const auto tokens = listops_tokens(line.substr(0, tab));
    const auto value = tokens ? listops_value(*tokens) : std::nullopt;
    if (!value) wrong("is not an expression of ListOps");
    if (*value != line[tab + 1] - '0') wrong("the expression has another value");
    examples.push_back(example_of(*tokens));
  }
  fail_input_if(examples.empty(), "[", path, "] has no examples");
  return examples;
}

class ReadListops : public ListopsTask {
 public:
  explicit ReadListops(const ListopsOptions& options) : ListopsTask(options) {
    for (const auto& [name, split] : kSplits) splits_.push_back(read_listops(options.folder + "/" + file_of(split)));
  }
  TaskShape shape() const override {
    size_t longest = 0;
    for (const auto& split : splits_) {
      for (const Example& example : split) longest = std::max(longest, example.tokens.size());
    }
    return {.vocabulary = kListopsTokens, .classes = 10, .length = int64_t(longest)};
  }
  int64_t size(Split split) const override { return int64_t(splits_[size_t(split)].size()); }
  Example example(Split split, int64_t index) const override { return splits_[size_t(split)][size_t(index)]; }

 private:
  std::vector<std::vector<Example>> splits_;
};

// Writes basic_{train,val,test}.tsv with at most `most` examples per split.
void write_listops(const TaskExamples& task, const std::string& folder, int64_t most) {
  for (const auto& [name, split] : kSplits) {
    std::string text = "Source\tTarget\r\n";
    for (int64_t i = 0; i < std::min(most, task.size(split)); ++i) {
      const Example example = task.example(split, i);
      text += concat(listops_source(example.tokens), "\t", example.label, "\r\n");
    }
    write_file(folder + "/" + file_of(split), text);
  }
}

}  // namespace

TaskKind listops_task() {
  const auto open = [](const Json& json, const std::string& place) -> std::unique_ptr<TaskExamples> {
    const auto options = from_fields<ListopsOptions>(json, place);
    if (options.folder.empty()) return std::make_unique<DrawnListops>(options);
    return std::make_unique<ReadListops>(options);
  };
  return {"listops", "Long Range Arena: the value of a long nested expression", open, write_listops};
}

}  // namespace cortado
