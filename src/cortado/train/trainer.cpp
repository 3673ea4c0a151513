#include "cortado/train/trainer.h"

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/random.h"
#include "cortado/base/stopwatch.h"
#include "cortado/train/schedule.h"

namespace cortado {
namespace {

struct Interrupted {};

std::vector<Tensor> values_of(const Parameters& parameters) {
  std::vector<Tensor> values;
  for (const Parameter& parameter : parameters) values.push_back(parameter.value);
  return values;
}

}  // namespace

Trainer::Trainer(std::shared_ptr<Task> task, const TrainingOptions& options, const Ranks& ranks, bool shared_out,
                 int64_t context_parts)
    : task_(std::move(task)),
      options_(options),
      ranks_(ranks),
      optimizer_(task_->learned(), options_, ranks_, shared_out),
      gradients_(values_of(task_->learned()), ranks_) {
  task_->train_among(ranks_);
  const std::string undivided = context_parts > 0 ? task_->undivided() : "";
  if (context_parts > 1 || (context_parts == 1 && undivided.empty())) {
    fail_input_if(!undivided.empty(), "[", task_->name(), "] ", undivided, " cannot lie over several processes");
    fail_input_if(options_.context < context_parts, "[", task_->name(), "] sequences of ", options_.context,
                  " tokens have no ", context_parts, " parts");
    relay_ = std::make_unique<Relay>(ranks_, context_parts);
  }
  state_.read = task_->data();
}

void Trainer::resume(const TrainerState& state) {
  const DataIdentity data = task_->data();
  fail_input_if(state.read.tokens != data.tokens, "[--resume] the data has changed: the run began with ",
                state.read.tokens, " tokens, now there are ", data.tokens);
  fail_input_if(state.read.fingerprint != data.fingerprint,
                "[--resume] the data has changed: as many tokens as the run began with, but others");
  state_ = state;
  saved_step_ = state.step;
  unsaved_ = false;
}

bool Trainer::run(const RunKeeper& keeper, const RunControl& control) {
  ProgressBar bar({.label = task_->name(),
                   .total = options_.steps,
                   .unit = "tokens",
                   .units_per_count = double(options_.tokens_per_step()),
                   .quiet = !control.progress || !ranks_.first()});
  bar.start_at(state_.step);
  bool stopping = false;
  first_step_ = state_.step;
  while (true) {
    if (validation_due()) {
      bar.clear();
      if (!validate(keeper, control)) stopping = true;
    }
    const bool reached = options_.target > 0 && state_.reached && *state_.reached >= options_.target;
    const bool finished = state_.step >= options_.steps || reached;
    // Also saves before the first step, so that from now on the run can be read and resumed.
    if (unsaved_ && (finished || stopping || state_.step % options_.evaluate_every == 0)) {
      keeper.checkpoint();
      saved_step_ = state_.step;
      unsaved_ = false;
    }
    if (finished || stopping) return finished && !validation_due();

    const Step step = take_step(keeper, control);
    if (state_.step % options_.log_every == 0 || state_.step == options_.steps) log(step, keeper);
    bar.update(state_.step, concat("loss ", fixed(step.loss, 3)));
    // With several processes, each asks before the step, so that all of them learn of a request to stop.
    stopping = state_.step == control.stop_at || step.stop || (!ranks_.several() && control.stop && control.stop());
  }
}

Trainer::Step Trainer::take_step(const RunKeeper& keeper, const RunControl& control) {
  const Stopwatch watch;
  Step step;
  step.rate = state_.plateau ? state_.plateau->rate : learning_rate(options_, state_.step);
  const bool stop = ranks_.several() && control.stop && control.stop();
  LearnedBatch learned = accumulate_gradients();
  step.stop = add_up(learned, stop);
  if (learned.targets == 0) ranks_.fail(concat("[", task_->name(), "] step ", state_.step + 1, " has no targets"));
  step.loss = task_->loss(learned.losses / learned.targets);
  require_finite("loss", step.loss, state_.step + 1, keeper);
  step.gradient_norm = optimizer_.gradient_norm() / learned.targets;  // gradients of summed losses up to here
  require_finite("gradient", step.gradient_norm, state_.step + 1, keeper);
  optimizer_.step(step.rate, learned.targets * clip_divisor(step.gradient_norm, options_.clip));
  optimizer_.clear_gradients();
  const double seconds = watch.seconds();
  unsaved_ = true;
  state_.step += 1;
  state_.tokens += learned.tokens;
  state_.seconds += seconds;
  interval_seconds_ += seconds;
  interval_tokens_ += learned.tokens;
  return step;
}

// Runs forward and backward on the step's batches.
LearnedBatch Trainer::accumulate_gradients() {
  // Dropout draws from torch's generator. Seeding it by the step makes a resumed run draw equal numbers.
  const std::string stream = ranks_.first() ? "dropout" : concat("dropout of process ", ranks_.rank());
  at::manual_seed(RandomStream(uint64_t(options_.seed), stream).bits(uint64_t(state_.step)));
  LearnedBatch all;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const bool last = i + 1 == options_.accumulate;
    const LearnedBatch more = task_->learn(state_.data, share(last));
    all = {i == 0 ? more.losses : all.losses + more.losses, all.targets + more.targets, all.tokens + more.tokens};
  }
  gradients_.finish();
  if (relay_) relay_->finish();
  return all;
}

// Processes that share sequences get the same rows of a batch.
BatchShare Trainer::share(bool last) {
  const int64_t sharing = relay_ ? relay_->parts() : 1;
  return {ranks_.rank() / sharing, ranks_.size() / sharing, relay_.get(),
          [this, last](const Tensor& sum) { gradients_.backward(sum, last); }};
}

// Sums `learned` over all processes. Returns whether one of them was asked to stop.
bool Trainer::add_up(LearnedBatch& learned, bool stop) const {
  if (!ranks_.grouped()) return false;
  const Tensor losses = learned.losses.to(at::kCPU, at::kDouble);
  const Tensor all =
      at::cat({losses.flatten(), at::tensor({learned.targets, double(learned.tokens), double(stop)}, at::kDouble)});
  ranks_.sum(all);
  learned = {all.slice(0, 0, -3).view_as(losses), all[-3].item<double>(), int64_t(all[-2].item<double>())};
  return all[-1].item<double>() > 0;
}

void Trainer::require_finite(const char* what, double value, int64_t step, const RunKeeper& keeper) const {
  if (std::isfinite(value)) return;
  ranks_.fail(concat("[", task_->name(), "] the ", what, " is ", std::isnan(value) ? "nan" : "inf", " at step ", step,
                     "; stopped, the checkpoint of step ", saved_step_, " is kept in ", keeper.place,
                     ". A smaller learning rate may help"));
}

bool Trainer::validation_due() const {
  if (!task_->validates() || state_.validated_step == state_.step) return false;
  return state_.step % options_.evaluate_every == 0 || state_.step >= options_.steps;
}

// Returns false if interrupted; the validation is then still due.
bool Trainer::validate(const RunKeeper& keeper, const RunControl& control) {
  ProgressBar bar({.label = "evaluate", .unit = "tokens", .quiet = !control.progress || !ranks_.first()});
  const auto progress = [&](int64_t done, int64_t total) {
    if (!ranks_.several() && done < total && control.stop && control.stop()) throw Interrupted{};
    bar.update_of(done, total);
  };
  Validation found;
  try {
    found = task_->validate(progress);
  } catch (const Interrupted&) {
    return false;
  }
  require_finite("validation loss", found.loss, state_.step, keeper);
  if (state_.plateau && state_.step > 0) state_.plateau->evaluated(found.loss);
  state_.validation_loss = found.loss;
  state_.validated_step = state_.step;
  const bool best = found.loss < state_.best_loss;
  if (best) {
    state_.best_loss = found.loss;
    state_.best_step = state_.step;
  }
  state_.reached = options_.target > 0 && found.score >= options_.target ? found.score : std::nullopt;
  unsaved_ = true;
  keeper.validated(found, best);
  Json line = {{"step", state_.step}};
  line.update(found.metrics);
  if (state_.plateau) line["rate"] = state_.plateau->rate;
  line["seconds"] = state_.seconds;
  keeper.log(line);
  return true;
}

void Trainer::log(const Step& step, const RunKeeper& keeper) {
  Json line = {{"step", state_.step},
               {"loss", step.loss},
               {"rate", step.rate},
               {"gradient_norm", step.gradient_norm},
               {"tokens_per_second", double(interval_tokens_) / interval_seconds_},
               {"seconds", state_.seconds}};
  // Bytes of process 0 per step: gradients that are summed, and states that it passes on.
  if (ranks_.grouped()) line["gradient_bytes"] = gradients_.bytes();
  if (relay_) line["state_bytes"] = relay_->bytes_sent() / std::max<int64_t>(1, state_.step - first_step_);
  keeper.log(line);
  interval_tokens_ = 0;
  interval_seconds_ = 0;
}

}  // namespace cortado
