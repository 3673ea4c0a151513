// In-context language learning: the next letter in strings of an automaton that no other example has (README.md).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <span>

#include "cortado/base/error.h"
#include "cortado/tasks/regbench/dfa.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

struct RegbenchOptions {
  DfaSizes sizes;
  int64_t examples = 5000, validation_examples = 500, test_examples = 500;  // one automaton per example
  int64_t least_strings = 10, most_strings = 19, longest_string = 49;
  int64_t seed = 0;

  void fields(JsonFields& json) {
    json.integer("examples", examples, 1, kMostExamples);
    json.integer("validation_examples", validation_examples, 1, kMostExamples);
    json.integer("test_examples", test_examples, 1, kMostExamples);
    json.integer("least_states", sizes.least_states, 2, 1000);
    json.integer("most_states", sizes.most_states, sizes.least_states, 1000);
    json.integer("least_letters", sizes.least_letters, 1, kLetters);
    json.integer("most_edges", sizes.most_edges, 1, std::min(sizes.least_letters, sizes.least_states - 1));
    json.integer("least_strings", least_strings, 1, kMostExamples);
    json.integer("most_strings", most_strings, least_strings, kMostExamples);
    json.integer("longest_string", longest_string, 2, kMostExamples);
    json.integer("seed", seed, 0, std::numeric_limits<int64_t>::max());
  }
};

// --- Predictions without a model: the baselines of the paper. ---

// Predicts the letter after `read`.
using Predictor = std::function<int64_t(const Dfa& dfa, std::span<const int64_t> read)>;

using Counts = std::array<int64_t, kSymbols>;

int64_t most(const Counts& counts) { return std::max_element(counts.begin(), counts.end()) - counts.begin(); }
bool none(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()) == 0; }

// Counts the letters that have followed the last `context` symbols earlier; separators do not count.
Counts followers(std::span<const int64_t> read, size_t context) {
  Counts counts{};
  if (read.size() < context) return counts;
  const auto last = read.last(context);
  for (size_t i = context; i < read.size(); ++i) {
    if (read[i] != kSeparator && std::equal(last.begin(), last.end(), read.begin() + int64_t(i - context))) {
      ++counts[size_t(read[i])];
    }
  }
  return counts;
}

// Predicts by the longest context that has occurred before.
int64_t n_gram(std::span<const int64_t> read, size_t n) {
  for (size_t context = n - 1; context > 0; --context) {
    const Counts counts = followers(read, context);
    if (!none(counts)) return most(counts);
  }
  return most(followers(read, 0));
}

// The state after the symbols since the last separator.
int64_t state_after(const Dfa& dfa, std::span<const int64_t> read) {
  int64_t state = 0;
  for (const int64_t symbol : read) state = symbol == kSeparator ? 0 : dfa.step(state, symbol);
  return state;
}

int64_t oracle(const Dfa& dfa, std::span<const int64_t> read) {
  const int64_t now = state_after(dfa, read);
  int64_t state = 0;
  Counts seen{};
  for (const int64_t symbol : read) {
    if (symbol != kSeparator && state == now) ++seen[size_t(symbol)];
    state = symbol == kSeparator ? 0 : dfa.step(state, symbol);
  }
  return none(seen) ? n_gram(read, 1) : most(seen);
}

// "uniform" cycles through the letters; "most_frequent" says the most frequent letter so far; "2_gram" .. "4_gram" back
// off to shorter contexts; "oracle" knows the automaton's state, but only transitions that have been seen.
const std::vector<std::pair<std::string, Predictor>>& regbench_predictors() {
  static const std::vector<std::pair<std::string, Predictor>> all = [] {
    std::vector<std::pair<std::string, Predictor>> list;
    list.emplace_back("uniform", [](const Dfa&, auto read) { return 1 + int64_t(read.size()) % kLetters; });
    list.emplace_back("most_frequent", [](const Dfa&, auto read) { return n_gram(read, 1); });
    for (size_t n = 2; n <= 4; ++n) {
      list.emplace_back(std::to_string(n) + "_gram", [n](const Dfa&, auto read) { return n_gram(read, n); });
    }
    list.emplace_back("oracle", oracle);
    return list;
  }();
  return all;
}

// --- The task. ---

constexpr int64_t kScoredTogether = 32;  // batch size of the public code, which averages the means of batches

// Whether the prediction after token t is scored: after all tokens but the last of a string, and after the very last
// one.
bool scored(const Example& example, size_t t) {
  return t + 1 == example.tokens.size() || example.tokens[t + 1] != kSeparator;
}

// Averages values over the positions of kScoredTogether examples, and then these means, weighted by their examples.
class BatchMean {
 public:
  void add(double value) { sum_ += value, ++count_; }
  void example() {
    if (++examples_ % kScoredTogether == 0) close();
  }
  double result() const {
    const int64_t open = examples_ % kScoredTogether;
    const double sum = total_ + (open > 0 && count_ > 0 ? sum_ / double(count_) * double(open) : 0);
    return examples_ > 0 ? sum / double(examples_) : 0.0;
  }

 private:
  void close() {
    if (count_ > 0) total_ += sum_ / double(count_) * double(kScoredTogether);
    sum_ = 0, count_ = 0;
  }
  double sum_ = 0, total_ = 0;
  int64_t count_ = 0, examples_ = 0;
};

// Sum over symbols of |softmax(logits) - p|, where p is uniform over the letters that the automaton allows.
double difference(std::span<const float> logits, const std::vector<int64_t>& allowed) {
  const double high = *std::max_element(logits.begin(), logits.end());
  double total = 0, sum = 0;
  for (const float logit : logits) total += std::exp(double(logit) - high);
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool is = std::find(allowed.begin(), allowed.end(), int64_t(i)) != allowed.end();
    sum += std::abs(std::exp(double(logits[i]) - high) / total - (is ? 1 / double(allowed.size()) : 0));
  }
  return sum;
}

class RegbenchExamples : public TaskExamples {
 public:
  explicit RegbenchExamples(const RegbenchOptions& options) : options_(options) {
    for (const auto& [name, split] : kSplits) streams_.emplace_back(uint64_t(options.seed), "regbench " + name);
  }

  TaskShape shape() const override {
    return {.vocabulary = kSymbols, .length = options_.most_strings * (options_.longest_string + 1) - 2};
  }
  int64_t size(Split split) const override {
    return std::array{options_.examples, options_.validation_examples, options_.test_examples}[size_t(split)];
  }

  Dfa dfa(Split split, int64_t index) const {
    Draws draws(streams_[size_t(split)], index);
    return minimal(draw_dfa(draws, options_.sizes));
  }

  Example example(Split split, int64_t index) const override {
    Draws draws(streams_[size_t(split)], index);
    const Dfa dfa = minimal(draw_dfa(draws, options_.sizes));
    std::vector<int64_t> all;
    for (int64_t strings = draws.between(options_.least_strings, options_.most_strings); strings > 0; --strings) {
      const auto string = walk(dfa, draws, draws.between(1, options_.longest_string));
      if (!all.empty()) all.push_back(kSeparator);
      all.insert(all.end(), string.begin(), string.end());
    }
    Example example;
    example.tokens.assign(all.begin(), all.end() - 1);
    example.targets.assign(all.begin() + 1, all.end());
    std::replace(example.targets.begin(), example.targets.end(), kSeparator, kIgnored);
    return example;
  }

  std::vector<int64_t> places(const Example& example) const override {
    std::vector<int64_t> all(example.tokens.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = int64_t(i);
    return all;
  }

  std::unique_ptr<Scores> scores(Split split) const override;

  // Statistics of the automata and the sequences, and the baselines' accuracies.
  Json statistics(int64_t count) const override {
    double states = 0, minimal_states = 0, edges = 0, letters = 0, length = 0, exact = 0, nats = 0, targets = 0;
    const auto& predictors = regbench_predictors();
    std::vector<BatchMean> right(predictors.size());
    count = std::min(count, options_.examples);
    const auto share = [&](double value) { return value / double(count); };
    for (int64_t i = 0; i < count; ++i) {
      Draws draws(streams_[0], i);
      states += share(double(draw_dfa(draws, options_.sizes).states()));
      const Dfa dfa = this->dfa(Split::kTrain, i);
      const Example it = example(Split::kTrain, i);
      minimal_states += share(double(dfa.states()));
      for (int64_t s = 0; s < dfa.states(); ++s) edges += double(dfa.letters(s).size());
      std::set<int64_t> used(it.tokens.begin(), it.tokens.end());
      used.erase(kSeparator);
      letters += share(double(used.size()));
      length += share(double(it.tokens.size()));
      for (size_t t = 0; t < it.tokens.size(); ++t) {
        const std::span read(it.tokens.data(), t + 1);
        const int64_t state = state_after(dfa, read);
        if (it.targets[t] >= 0) {
          const double choices = double(dfa.letters(state).size());
          exact += 1 / choices, nats += std::log(choices), targets += 1;
        }
        for (size_t p = 0; scored(it, t) && p < predictors.size(); ++p) {
          right[p].add(dfa.step(state, predictors[p].second(dfa, read)) >= 0);
        }
      }
      for (BatchMean& mean : right) mean.example();
    }
    Json found = {{"states", states},
                  {"minimal_states", minimal_states},
                  {"out_degree", edges / (minimal_states * double(count))},
                  {"letters", letters},
                  {"length", length},
                  {"exact_ceiling", exact / targets},
                  {"loss_floor", nats / targets}};
    for (size_t p = 0; p < predictors.size(); ++p) found[predictors[p].first] = right[p].result();
    return found;
  }

  // From an independent implementation of the public generator and its scoring.
  std::vector<Published> published() const override {
    RegbenchOptions usual;
    usual.examples = options_.examples;
    usual.seed = options_.seed;
    if (json_of(options_) != json_of(usual)) return {};
    return {{"states", 7.91, 0.2},
            {"minimal_states", 6.84, 0.2},
            {"out_degree", 2, 0.05},
            {"letters", 7.4, 0.2},
            {"length", 377, 6},
            {"exact_ceiling", 0.618, 0.012},
            {"loss_floor", 0.587, 0.018},
            {"uniform", 0.11, 0.004},
            {"most_frequent", 0.481, 0.012},
            {"2_gram", 0.829, 0.008},
            {"3_gram", 0.937, 0.005},
            {"4_gram", 0.955, 0.005},
            {"oracle", 0.9875, 0.002}};
  }

  std::string drawn(const Example& example) const override {
    std::string text;
    for (const int64_t token : example.tokens) text += token == kSeparator ? '\n' : char('a' + token - 1);
    return text + "\n";
  }

 private:
  RegbenchOptions options_;
  std::vector<RandomStream> streams_;  // one per split
};

class RegbenchScores : public Scores {
 public:
  RegbenchScores(const RegbenchExamples& task, Split split) : task_(task), split_(split) {}

  void add(int64_t index, const Example& example, std::span<const float> logits) override {
    const Dfa dfa = task_.dfa(split_, index);
    int64_t state = 0;
    for (size_t t = 0; t < example.tokens.size(); ++t) {
      state = example.tokens[t] == kSeparator ? 0 : dfa.step(state, example.tokens[t]);
      const auto row = logits.subspan(t * kSymbols, kSymbols);
      const int64_t said = largest(row);
      if (scored(example, t)) valid_.add(dfa.step(state, said) >= 0);
      if (example.targets[t] >= 0) exact_.add(said == example.targets[t]);
      difference_.add(difference(row, dfa.letters(state)));
    }
    for (BatchMean* mean : {&valid_, &exact_, &difference_}) mean->example();
  }

  Json result() const override {
    return {{"accuracy", valid_.result()}, {"exact", exact_.result()}, {"difference", difference_.result()}};
  }

 private:
  const RegbenchExamples& task_;
  Split split_;
  BatchMean valid_, exact_, difference_;
};

std::unique_ptr<Scores> RegbenchExamples::scores(Split split) const {
  return std::make_unique<RegbenchScores>(*this, split);
}

}  // namespace

TaskKind regbench_task() {
  return {"regbench", "in-context language learning: the next letter of strings of an automaton never seen",
          opens<RegbenchExamples, RegbenchOptions>};
}

}  // namespace cortado
