#include "cortado/train/example_task.h"

#include <numeric>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/random.h"
#include "cortado/models/classifier.h"
#include "cortado/models/language_model.h"
#include "cortado/nn/autocast.h"
#include "cortado/tasks/registry.h"
#include "cortado/train/optimizer.h"

namespace cortado {
namespace {

// A batch of examples: dense if their lengths are equal, packed otherwise.
struct ExampleBatch {
  std::vector<Example> examples;
  Tensor inputs;
  Batch about;
  Tensor targets;  // [tokens of the inputs] if tokens have targets, else [examples]: classes
};

Tensor inputs_of(const Example& example, const TaskShape& shape, bool second) {
  if (shape.vocabulary == 0) {
    return at::tensor(example.numbers).view({-1, shape.channels});
  }
  return at::tensor(second ? example.second : example.tokens, at::kLong);
}

ExampleBatch collate(std::vector<Example> examples, const TaskShape& shape, at::Device device) {
  std::vector<Tensor> inputs;
  std::vector<int64_t> bounds{0}, targets;
  bool dense = true;
  for (const Example& example : examples) {
    for (const bool second : {false, true}) {
      if (second && !shape.pairs) continue;
      inputs.push_back(inputs_of(example, shape, second));
      bounds.push_back(bounds.back() + inputs.back().size(0));
      dense &= inputs.back().size(0) == inputs.front().size(0);
    }
    if (shape.classes > 0) {
      targets.push_back(example.label);
    } else {
      targets.insert(targets.end(), example.targets.begin(), example.targets.end());
    }
  }
  ExampleBatch batch{std::move(examples), dense ? at::stack(inputs) : at::cat(inputs).unsqueeze(0), {}, {}};
  if (!dense) batch.about.cu_seqlens = at::tensor(bounds, at::kLong).to(device);
  batch.inputs = batch.inputs.to(device);
  batch.targets = at::tensor(targets, at::kLong);
  return batch;
}

// Determines the examples of each batch. Batches do not cross segments. If shuffled, the order of examples and batches
// is a pure function of (seed, epoch).
class Order {
 public:
  Order(const std::vector<int64_t>& segments, int64_t batch, bool shuffled, int64_t seed)
      : segments_(segments), batch_(batch), shuffled_(shuffled), random_(uint64_t(seed), "examples") {
    for (size_t s = 0; s < segments.size(); ++s) {
      for (int64_t first = 0; first < segments[s]; first += batch) batches_.emplace_back(s, first);
    }
  }

  int64_t batches() const { return int64_t(batches_.size()); }

  std::vector<int64_t> of(int64_t number) {
    turn_to(number / batches());
    const auto [segment, first] = batches_[size_t(order_[size_t(number % batches())])];
    const auto& examples = examples_[segment];
    return {examples.begin() + first, examples.begin() + std::min(first + batch_, int64_t(examples.size()))};
  }

 private:
  void turn_to(int64_t epoch) {
    if (epoch == epoch_) return;
    epoch_ = epoch;
    examples_.clear();
    const auto arranged = [&](int64_t count, uint64_t what) {
      std::vector<int64_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      return shuffled_ ? random_.permutation(count, uint64_t(epoch) * (segments_.size() + 1) + what) : order;
    };
    int64_t before = 0;
    for (size_t s = 0; s < segments_.size(); ++s) {
      examples_.push_back(arranged(segments_[s], s + 1));
      for (int64_t& example : examples_.back()) example += before;
      before += segments_[s];
    }
    order_ = arranged(batches(), 0);
  }

  std::vector<int64_t> segments_;
  int64_t batch_;
  bool shuffled_;
  RandomStream random_;
  std::vector<std::pair<size_t, int64_t>> batches_;  // segment and first example
  int64_t epoch_ = -1;
  std::vector<std::vector<int64_t>> examples_;  // [segment][i]
  std::vector<int64_t> order_;
};

Tensor loss_of(Backbone& model, const ExampleBatch& batch) {
  if (auto* classifier = dynamic_cast<Classifier*>(&model)) {
    return classifier->loss(batch.inputs, batch.targets.to(batch.inputs.device()), batch.about);
  }
  return dynamic_cast<LanguageModel&>(model).loss(batch.inputs, batch.targets.view_as(batch.inputs), batch.about);
}

class ExampleTask : public Task {
 public:
  ExampleTask(std::shared_ptr<const TaskExamples> examples, std::shared_ptr<Backbone> model,
              const TrainingOptions& options, bool shuffled, DataIdentity identity)
      : examples_(std::move(examples)),
        shape_(examples_->shape()),
        model_(std::move(model)),
        options_(options),
        order_(examples_->segments(Split::kTrain), options.batch, shuffled, options.seed),
        identity_(std::move(identity)) {}

  const std::string& name() const override { return name_; }
  Parameters learned() const override { return trainable(*model_); }
  DataIdentity data() const override { return identity_; }

  LearnedBatch learn(DataPosition& position, const BatchShare& share) override {
    std::vector<Example> examples;
    const std::vector<int64_t> indices = order_.of(position.batches++);
    const auto count = int64_t(indices.size());
    double targets = 0;
    for (int64_t i = share.begin(count); i < share.end(count); ++i) {
      examples.push_back(examples_->example(Split::kTrain, indices[size_t(i)]));
      targets += counted_targets(examples.back());
    }
    if (targets == 0) return nothing_learned(share);
    ExampleBatch batch = collate(std::move(examples), shape_, model_->device());
    batch.about.training = true;
    Tensor loss;
    {
      const Autocast autocast(model_->device(), options_.compute_type());
      loss = loss_of(*model_, batch) * targets;
    }
    share.backward(loss);
    return {loss.detach(), targets, batch.inputs.size(0) * batch.inputs.size(1)};
  }

  bool validates() const override { return examples_->size(Split::kValidation) > 0; }
  Validation validate(const Progress& progress) override {
    const Autocast autocast(model_->device(), options_.compute_type());
    Json found = score_examples(*model_, *examples_, Split::kValidation, options_.batch,
                                options_.evaluate_batches * options_.batch, progress);
    Validation validation{found.at("loss").get<double>(), {}, {{"validation_loss", found.at("loss")}}};
    found.erase("loss");
    validation.score = found.begin()->get<double>();
    validation.metrics.update(found);
    return validation;
  }

 private:
  // The number of targets of an example.
  double counted_targets(const Example& example) const {
    if (shape_.classes > 0) return 1;
    return double(std::count_if(example.targets.begin(), example.targets.end(), [](int64_t it) { return it >= 0; }));
  }

  const std::string name_ = "train";
  std::shared_ptr<const TaskExamples> examples_;
  TaskShape shape_;
  std::shared_ptr<Backbone> model_;
  TrainingOptions options_;
  Order order_;
  DataIdentity identity_;
};

// Completes head and input from the task where the config leaves them open.
void complete_head(const TaskShape& shape, ModelConfig& model, const std::string& name) {
  HeadConfig& head = model.head;
  if (shape.classes == 0) {
    fail_input_if(head.kind != HeadKind::kLanguage, "[", name,
                  "] \"head\" is a classifier's: the task asks for tokens");
    fail_input_if(!model.causal, "[", name, "] \"causal\" is false: the model would see the targets");
    return;
  }
  const HeadKind wanted = shape.pairs ? HeadKind::kPairs : HeadKind::kClasses;
  if (head.kind == HeadKind::kLanguage) head.kind = wanted;
  fail_input_if(head.kind != wanted, "[", name, "] the task is about ", shape.pairs ? "pairs" : "single inputs",
                ", \"head\" says otherwise");
  if (head.classes == 0) head.classes = shape.classes;
  fail_input_if(head.classes != shape.classes, "[", name, "] the task has ", shape.classes, " classes, \"head\" has ",
                head.classes);
}

class ExampleData : public TaskData {
 public:
  explicit ExampleData(const Json& settings) : settings_(settings), task_(open_task(settings, "task")) {
    const Json shuffle = settings.value("shuffle", Json(true));
    fail_input_if(!shuffle.is_boolean(), "[task] \"shuffle\" must be true or false, got ", shuffle.dump());
    shuffled_ = shuffle.get<bool>();
  }

  void complete(ModelConfig& model, TrainingOptions& options, const std::string& name) const override {
    const TaskShape shape = task_->shape();
    complete_head(shape, model, name);
    fail_input_if(shape.vocabulary == 0 && model.vocabulary > 0, "[", name, "] the task's inputs are numbers: no \"",
                  "vocabulary\"");
    if (shape.channels > 0) model.channels = shape.channels;
    if (model.vocabulary == 0) model.vocabulary = shape.vocabulary;
    fail_input_if(model.vocabulary < shape.vocabulary, "[", name, "] \"vocabulary\" is ", model.vocabulary,
                  ", the task has ", shape.vocabulary, " tokens");
    if (model.context == 0) model.context = shape.length;
    options.context = shape.length;
    fail_input_if(model.positions == PositionKind::kLearned && model.context < shape.length, "[", name,
                  "] learned positions for ", model.context, " tokens, the task's inputs have up to ", shape.length);
  }

  std::shared_ptr<Task> task(const std::shared_ptr<Backbone>& model, const TrainingOptions& options) const override {
    const std::string about = settings_.dump();
    return std::make_shared<ExampleTask>(task_, model, options, shuffled_,
                                         DataIdentity{task_->size(Split::kTrain), about});
  }

  int64_t epoch(const TrainingOptions& options) const override {
    return Order(task_->segments(Split::kTrain), options.batch, false, options.seed).batches();
  }
  std::string description() const override {
    return concat(with_commas(task_->size(Split::kTrain)), " examples of ", settings_.at("name").get<std::string>());
  }

 private:
  Json settings_;
  std::shared_ptr<const TaskExamples> task_;
  bool shuffled_ = true;
};

// Sums up losses and scores over batches.
class Answers {
 public:
  Answers(const TaskExamples& task, Split split) : task_(task), shape_(task.shape()), scores_(task.scores(split)) {}

  void add(const Backbone& model, const ExampleBatch& batch, int64_t first) {
    if (const auto* classifier = dynamic_cast<const Classifier*>(&model)) {
      const Tensor logits = classifier->forward(batch.inputs, batch.about).to(at::kFloat);
      add_loss(logits, batch.targets);
      for (size_t i = 0; i < batch.examples.size(); ++i)
        score(batch.examples[i], first + int64_t(i), logits[int64_t(i)]);
      return;
    }
    const Tensor hidden = model.hidden(batch.inputs, batch.about).flatten(0, 1);
    int64_t before = 0;
    for (size_t i = 0; i < batch.examples.size(); ++i) {
      const Example& example = batch.examples[i];
      const Tensor places = at::tensor(task_.places(example), at::kLong) + before;
      const Tensor answers = hidden.index_select(0, places.to(hidden.device()));
      const Tensor logits = dynamic_cast<const LanguageModel&>(model).logits(answers).to(at::kFloat);
      add_loss(logits, batch.targets.index_select(0, places));
      score(example, first + int64_t(i), logits);
      before += int64_t(example.tokens.size());
    }
  }

  Json result() const {
    Json found = {{"loss", count_ > 0 ? sum_ / double(count_) : 0.0}};
    found.update(scores_->result());
    return found;
  }

 private:
  void add_loss(const Tensor& logits, const Tensor& targets) {
    sum_ +=
        at::cross_entropy_loss(logits, targets.to(logits.device()), {}, at::Reduction::Sum, kIgnored).item<double>();
    count_ += targets.ge(0).sum().item<int64_t>();
  }
  void score(const Example& example, int64_t index, const Tensor& logits) {
    const Tensor rows = logits.cpu().contiguous();
    scores_->add(index, example, {rows.const_data_ptr<float>(), size_t(rows.numel())});
  }

  const TaskExamples& task_;
  TaskShape shape_;
  std::unique_ptr<Scores> scores_;
  double sum_ = 0;
  int64_t count_ = 0;
};

}  // namespace

std::unique_ptr<TaskData> open_example_data(const Json& task) { return std::make_unique<ExampleData>(task); }

Json score_examples(const Backbone& model, const TaskExamples& task, Split split, int64_t batch, int64_t most,
                    const std::function<void(int64_t done, int64_t total)>& progress) {
  const at::NoGradGuard no_grad;
  Answers answers(task, split);
  int64_t before = 0, total = task.size(split);
  if (most > 0) total = std::min(total, most);
  for (const int64_t size : task.segments(split)) {
    for (int64_t first = 0; first < size && before + first < total; first += batch) {
      if (progress) progress(before + first, total);
      std::vector<Example> examples;
      const int64_t end = std::min({size, first + batch, total - before});
      for (int64_t i = first; i < end; ++i) examples.push_back(task.example(split, before + i));
      answers.add(model, collate(std::move(examples), task.shape(), model.device()), before + first);
    }
    before += size;
  }
  if (progress) progress(total, total);
  return answers.result();
}

}  // namespace cortado
