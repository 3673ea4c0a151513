// Multi-query associative recall: pairs of a key and a value, then keys whose value is the answer (README.md).
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "cortado/base/error.h"
#include "cortado/tasks/draws.h"
#include "cortado/tasks/registry.h"

namespace cortado {
namespace {

// Examples with one length T and one number of pairs K.
struct MqarSegment {
  int64_t length = 64, pairs = 4, examples = 100000;
};

struct MqarOptions {
  int64_t vocabulary = 8192;        // keys are from the lower half, values from the upper; 0 is the filler
  double power = 0.01;              // weight of slot i when queries are placed: (i + 1)^(power - 1)
  bool random_non_queries = false;  // fill with random tokens instead of 0
  int64_t seed = 123;
  std::vector<MqarSegment> train, test;
};

// The position at which the pair begins whose value the query at t asks for: the first occurrence of its key.
int64_t place_of_pair(const Example& example, size_t t) {
  return std::find(example.tokens.begin(), example.tokens.end(), example.tokens[t]) - example.tokens.begin();
}

// The smallest power of two, but at least 16, that is not less than the distance.
int64_t distance_class(int64_t distance) { return std::max<int64_t>(16, int64_t(std::bit_ceil(uint64_t(distance)))); }

// An example's accuracy is the share of its queries that are answered correctly. Reports its mean over all examples and
// over the examples with each number of pairs, and the share of correct queries by the distance of their pair.
class MqarScores : public Scores {
 public:
  explicit MqarScores(int64_t vocabulary) : vocabulary_(size_t(vocabulary)) {}

  void add(int64_t, const Example& example, std::span<const float> logits) override {
    double right = 0;
    int64_t asked = 0;
    for (size_t t = 0; t < example.targets.size(); ++t) {
      if (example.targets[t] < 0) continue;
      const bool said = largest(logits.subspan(size_t(asked++) * vocabulary_, vocabulary_)) == example.targets[t];
      right += said;
      auto& [sum, count] = by_distance_[distance_class(int64_t(t) - place_of_pair(example, t))];
      sum += said;
      count += 1;
    }
    auto& [sum, count] = by_pairs_[asked];
    sum += right / double(asked);
    count += 1;
  }

  Json result() const override {
    double sum = 0, count = 0;
    Json slices = Json::object();
    for (const auto& [pairs, part] : by_pairs_) {
      sum += part.first;
      count += part.second;
      slices[concat("accuracy_", pairs, "_pairs")] = part.first / part.second;
    }
    Json result = {{"accuracy", count > 0 ? sum / count : 0.0}};
    result.update(slices);
    for (const auto& [most, part] : by_distance_) result[concat("accuracy_to_", most)] = part.first / part.second;
    return result;
  }

 private:
  size_t vocabulary_;
  std::map<int64_t, std::pair<double, double>> by_pairs_;     // sum of accuracies, number of examples
  std::map<int64_t, std::pair<double, double>> by_distance_;  // correct queries, all queries
};

// Draws `count` of the slots 0 .. slots-1 without replacement, each with a probability proportional to its weight among
// the remaining slots. This is the order of the values Exp(1) / weight.
std::vector<int64_t> draw_slots(Draws& draws, int64_t count, int64_t slots, double power) {
  std::vector<std::pair<double, int64_t>> arrivals;
  for (int64_t i = 0; i < slots; ++i) {
    const double weight = std::pow(double(i + 1), power - 1);
    arrivals.emplace_back(-std::log1p(-draws.uniform()) / weight, i);
  }
  std::partial_sort(arrivals.begin(), arrivals.begin() + count, arrivals.end());
  std::vector<int64_t> drawn;
  for (int64_t i = 0; i < count; ++i) drawn.push_back(arrivals[size_t(i)].second);
  return drawn;
}

class MqarExamples : public TaskExamples {
 public:
  explicit MqarExamples(MqarOptions options) : options_(std::move(options)) {
    for (const Split split : {Split::kTrain, Split::kTest}) {
      for (size_t i = 0; i < list(split).size(); ++i) {
        streams_[split == Split::kTrain].emplace_back(uint64_t(options_.seed),
                                                      concat("mqar ", name_of(kSplits, split), " ", i));
      }
    }
  }

  TaskShape shape() const override {
    TaskShape shape{.vocabulary = options_.vocabulary};
    for (const auto& parts : {options_.train, options_.test}) {
      for (const MqarSegment& segment : parts) shape.length = std::max(shape.length, segment.length);
    }
    return shape;
  }
  int64_t size(Split split) const override {
    const auto sizes = segments(split);
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }
  std::vector<int64_t> segments(Split split) const override {
    std::vector<int64_t> sizes;
    for (const MqarSegment& segment : list(split)) sizes.push_back(segment.examples);
    return sizes;
  }

  Example example(Split split, int64_t index) const override {
    size_t which = 0;
    for (; index >= list(split)[which].examples; ++which) index -= list(split)[which].examples;
    return draw(list(split)[which], Draws(streams_[split == Split::kTrain][which], index));
  }

  std::unique_ptr<Scores> scores(Split) const override { return std::make_unique<MqarScores>(options_.vocabulary); }
  Json statistics(int64_t count) const override;
  std::vector<Published> published() const override;
  std::string drawn(const Example& example) const override;

 private:
  // Validation uses the test examples: the papers stop and select models by them.
  const std::vector<MqarSegment>& list(Split split) const {
    return split == Split::kTrain ? options_.train : options_.test;
  }
  Example draw(const MqarSegment& segment, Draws draws) const;

  MqarOptions options_;
  std::vector<RandomStream> streams_[2];  // one per segment of the test, and of training
};

Example MqarExamples::draw(const MqarSegment& segment, Draws draws) const {
  const int64_t T = segment.length, K = segment.pairs, V = options_.vocabulary;
  Example example{.tokens = std::vector<int64_t>(size_t(T), 0), .targets = std::vector<int64_t>(size_t(T), kIgnored)};
  const auto keys = draws.distinct(K, V / 2 - 1), values = draws.distinct(K, V - V / 2);
  const auto slots = draw_slots(draws, K, (T - 2 * K) / 2, options_.power);
  if (options_.random_non_queries) {
    for (int64_t& token : example.tokens) token = draws.below(V);
  }
  for (int64_t j = 0; j < K; ++j) {
    const int64_t key = 1 + keys[size_t(j)], value = V / 2 + values[size_t(j)], query = 2 * K + 2 * slots[size_t(j)];
    example.tokens[size_t(2 * j)] = example.tokens[size_t(query)] = key;
    example.tokens[size_t(2 * j + 1)] = value;
    example.targets[size_t(query)] = value;
  }
  return example;
}

// Measures the distances from queries to their pairs, the shares of distances up to 16, 32, ..., and the mean slot in
// which the first and the last pair are asked for.
Json MqarExamples::statistics(int64_t count) const {
  std::vector<int64_t> distances;
  double first = 0, last = 0;
  count = std::min(count, options_.train.front().examples);
  const int64_t pairs = options_.train.front().pairs;
  for (int64_t i = 0; i < count; ++i) {
    const Example it = example(Split::kTrain, i);
    for (size_t t = size_t(2 * pairs); t < it.tokens.size(); ++t) {
      if (it.targets[t] < 0) continue;
      const int64_t key = place_of_pair(it, t);
      distances.push_back(int64_t(t) - key);
      const double slot = double(int64_t(t) - 2 * pairs) / 2;
      if (key == 0) first += slot / double(count);
      if (key == 2 * (pairs - 1)) last += slot / double(count);
    }
  }
  std::sort(distances.begin(), distances.end());
  const auto quantile = [&](double share) { return distances[size_t(share * double(distances.size() - 1))]; };
  Json found = {{"distance_median", quantile(0.5)},
                {"distance_p90", quantile(0.9)},
                {"slot_of_first_pair", first},
                {"slot_of_last_pair", last}};
  for (int64_t width = 16; width <= options_.train.front().length; width *= 2) {
    const auto near = std::upper_bound(distances.begin(), distances.end(), width) - distances.begin();
    found[concat("within_", width)] = double(near) / double(distances.size());
  }
  return found;
}

// From an independent implementation of zoology's generator.
std::vector<Published> MqarExamples::published() const {
  const MqarSegment& first = options_.train.front();
  if (options_.power != 0.01) return {};
  switch (first.length * 1000 + first.pairs) {
    case 64004:
      return {{"within_16", 0.585, 0.02}, {"within_32", 0.791, 0.02}};
    case 128008:
      return {{"within_16", 0.305, 0.025}, {"within_32", 0.58, 0.02}, {"within_64", 0.805, 0.015}};
    case 256016:
      return {{"within_32", 0.322, 0.012}, {"within_64", 0.598, 0.012}, {"within_128", 0.817, 0.012}};
    case 512064:
      return {{"distance_median", 156, 5},    {"distance_p90", 350, 6},    {"slot_of_first_pair", 32.6, 3},
              {"slot_of_last_pair", 82.7, 4}, {"within_64", 0.052, 0.004}, {"within_128", 0.366, 0.01},
              {"within_256", 0.758, 0.01},    {"within_512", 1, 0}};
    case 1024256:
      return {{"within_256", 0.02, 0.004}, {"within_512", 0.55, 0.01}};
    default:
      return {};
  }
}

// Pairs on the first line, then the other tokens; a query is followed by "?" and its answer.
std::string MqarExamples::drawn(const Example& example) const {
  const int64_t pairs = std::count_if(example.targets.begin(), example.targets.end(), [](int64_t t) { return t >= 0; });
  std::string text;
  for (size_t t = 0; t < example.tokens.size(); ++t) {
    if (int64_t(t) == 2 * pairs) text += "\n";
    const bool pair = int64_t(t) < 2 * pairs;
    text += concat(t == 0 || int64_t(t) == 2 * pairs ? "" : pair && t % 2 == 0 ? ", " : " ", example.tokens[t]);
    if (example.targets[t] >= 0) text += concat("?", example.targets[t]);
  }
  return text + "\n";
}

void segment_fields(JsonFields& json, MqarSegment& segment) {
  json.integer("length", segment.length, 4, kMostExamples);
  json.integer("pairs", segment.pairs, 1, kMostExamples);
  json.integer("examples", segment.examples, 1, kMostExamples);
}

// The default settings of the public experiments.
MqarOptions protocol(const std::string& name) {
  MqarOptions options;
  if (name == "zoology") {
    options.train = {{64, 4, 100000}};
    options.test = {{64, 4, 3000}};
    return options;
  }
  options.random_non_queries = true;
  options.train = {{64, 4, 100000}, {128, 8, 20000}, {256, 16, 20000}, {256, 32, 20000}, {256, 64, 20000}};
  options.test = {{64, 4, 1000},   {64, 8, 1000},    {64, 16, 1000},   {128, 32, 1000},
                  {256, 64, 1000}, {512, 128, 1000}, {1024, 256, 1000}};
  return options;
}

void check_segments(const MqarOptions& options, const std::string& place) {
  fail_input_if(options.vocabulary % 2 != 0, "[", place, "] \"vocabulary\" must be even, got ", options.vocabulary);
  for (const auto& parts : {options.train, options.test}) {
    fail_input_if(parts.empty(), "[", place, "] no segments");
    for (const MqarSegment& segment : parts) {
      fail_input_if(segment.length % 2 != 0, "[", place, "] \"length\" must be even, got ", segment.length);
      fail_input_if(4 * segment.pairs > segment.length, "[", place, "] ", segment.pairs, " pairs take ",
                    4 * segment.pairs, " tokens, \"length\" is ", segment.length);
      fail_input_if(options.vocabulary <= segment.length, "[", place,
                    "] \"vocabulary\" must be above \"length\" = ", segment.length, ", got ", options.vocabulary);
    }
  }
}

// Reads {"protocol": "zoology" | "based", ...}, the task's settings. InputError for 4 K > T, V <= T, ...
MqarOptions mqar_options(const Json& settings, const std::string& place) {
  JsonReader reader(settings, place);
  MqarOptions options = protocol(reader.choice("protocol", {"zoology", "based"}, "zoology"));
  JsonFields json(reader);
  json.integer("vocabulary", options.vocabulary, 4, kMostExamples);
  json.number("power", options.power, 0, 10);
  json.boolean("random_non_queries", options.random_non_queries);
  json.integer("seed", options.seed, 0, std::numeric_limits<int64_t>::max());
  // Either one length and number of pairs for both splits, or lists.
  for (MqarSegment* segment : {&options.train.front(), &options.test.front()}) {
    json.integer("length", segment->length, 4, kMostExamples);
    json.integer("pairs", segment->pairs, 1, kMostExamples);
  }
  const bool single = reader.has("length") || reader.has("pairs");
  if (single) options.train.resize(1), options.test.resize(1);
  json.integer("examples", options.train.front().examples, 1, kMostExamples);
  json.integer("test_examples", options.test.front().examples, 1, kMostExamples);
  json.fail_if(single && (reader.has("train") || reader.has("test")),
               "either \"length\" and \"pairs\", or the lists \"train\" and \"test\"");
  if (reader.has("train")) json.list("train", options.train, segment_fields);
  if (reader.has("test")) json.list("test", options.test, segment_fields);
  reader.finish();
  check_segments(options, place);
  return options;
}

}  // namespace

TaskKind mqar_task() {
  return {"mqar", "multi-query associative recall: keys and values, then keys whose value is asked for",
          [](const Json& json, const std::string& place) {
            return std::make_unique<MqarExamples>(mqar_options(json, place));
          }};
}

}  // namespace cortado
