#include "cortado/tasks/regbench/regbench.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cortado/base/error.h"
#include "cortado/base/fields.h"
#include "cortado/tasks/regbench/predictors.h"

namespace cortado {
namespace {

constexpr int64_t kScoredTogether = 32;  // the public code's batch, whose mean over positions it averages

// Is a letter scored behind position t? The last one's is, and that of a separator; a word's end is not.
bool scored(const Example& example, size_t t) {
  return t + 1 == example.tokens.size() || example.tokens[t + 1] != kSeparator;
}

// A mean over positions of kScoredTogether examples, and over all of those.
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

// Sum over symbols of |softmax(logits) - p|, p uniform over the letters that the automaton allows.
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
  Example example(Split split, int64_t index) const override;
  std::vector<int64_t> places(const Example& example) const override;
  std::unique_ptr<Scores> scores(Split split) const override;
  Json statistics(int64_t count) const override;
  std::vector<Published> published() const override;
  std::string drawn(const Example& example) const override;

 private:
  RegbenchOptions options_;
  std::vector<RandomStream> streams_;  // a split each
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

Example RegbenchExamples::example(Split split, int64_t index) const {
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

std::vector<int64_t> RegbenchExamples::places(const Example& example) const {
  std::vector<int64_t> all(example.tokens.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = int64_t(i);
  return all;
}

std::unique_ptr<Scores> RegbenchExamples::scores(Split split) const {
  return std::make_unique<RegbenchScores>(*this, split);
}

// Of the automata, of the sequences, and how often a baseline's letter is allowed.
Json RegbenchExamples::statistics(int64_t count) const {
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

// Of an independent implementation of the public generator and its scoring.
std::vector<Published> RegbenchExamples::published() const {
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

std::string RegbenchExamples::drawn(const Example& example) const {
  std::string text;
  for (const int64_t token : example.tokens) text += token == kSeparator ? '\n' : char('a' + token - 1);
  return text + "\n";
}

}  // namespace

void RegbenchOptions::fields(JsonFields& json) {
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

std::unique_ptr<TaskExamples> regbench_examples(const RegbenchOptions& options) {
  return std::make_unique<RegbenchExamples>(options);
}

}  // namespace cortado
