#include "cortado/train/trainer.h"

#include <chrono>
#include <filesystem>

#include "cortado/base/error.h"
#include "cortado/base/files.h"
#include "cortado/base/human.h"
#include "cortado/base/progress.h"
#include "cortado/base/random.h"
#include "cortado/evaluate/evaluate.h"
#include "cortado/models/checkpoint.h"
#include "cortado/nn/autocast.h"
#include "cortado/nn/lora.h"
#include "cortado/train/schedule.h"

namespace cortado {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Interrupted {};

}  // namespace

Trainer::Trainer(std::shared_ptr<LanguageModel> model, const TrainingOptions& options,
                 std::shared_ptr<BatchSource> batches, std::shared_ptr<const TokenFile> validation, RunFolder folder,
                 Json about)
    : model_(std::move(model)),
      options_(options),
      batches_(std::move(batches)),
      validation_(std::move(validation)),
      folder_(std::move(folder)),
      about_(std::move(about)),
      optimizer_(*model_, options_) {
  if (validation_ && validation_->size() < 2) validation_ = nullptr;
  state_.data_tokens = batches_->tokens();
  state_.data_fingerprint = batches_->fingerprint();
}

void Trainer::resume() {
  if (!std::filesystem::exists(folder_.trainer())) return;
  state_ = load_trainer(folder_.trainer(), *model_, optimizer_);
  fail_input_if(state_.data_tokens != batches_->tokens(), "[--resume] the data has changed: the run began with ",
                state_.data_tokens, " tokens, now there are ", batches_->tokens());
  fail_input_if(state_.data_fingerprint != batches_->fingerprint(),
                "[--resume] the data has changed: as many tokens as the run began with, but others");
  saved_step_ = state_.step;
}

bool Trainer::run(const RunControl& control) {
  metrics_ = std::make_unique<MetricsFile>(folder_.metrics(), state_.step);
  ProgressBar bar({.label = "train",
                   .total = options_.steps,
                   .unit = "tokens",
                   .units_per_count = double(options_.tokens_per_step()),
                   .quiet = !control.progress});
  bar.start_at(state_.step);
  if (saved_step_ < 0) checkpoint();  // from now on the folder holds a run that can be read and resumed

  bool stopping = false;
  while (true) {
    if (validation_due() && !validate(control.stop)) stopping = true;
    const bool finished = state_.step >= options_.steps;
    const bool due = state_.step % options_.evaluate_every == 0;
    if ((due || finished || stopping) && saved_step_ != state_.step) checkpoint();
    if (finished || stopping) return finished && !validation_due();

    const auto start = Clock::now();
    const Step step = take_step();
    const double seconds = seconds_since(start);
    state_.step += 1;
    state_.tokens += options_.tokens_per_step();
    state_.seconds += seconds;
    interval_seconds_ += seconds;
    interval_tokens_ += options_.tokens_per_step();

    if (state_.step % options_.log_every == 0 || state_.step == options_.steps) log(step);
    bar.update(state_.step, concat("loss ", fixed(step.loss, 3)));
    stopping = state_.step == control.stop_at || (control.stop && control.stop());
  }
}

Trainer::Step Trainer::take_step() {
  Step step;
  step.rate = learning_rate(options_, state_.step);
  step.loss = accumulate_gradients();
  require_finite("loss", step.loss);
  step.gradient_norm = optimizer_.gradient_norm();
  require_finite("gradient", step.gradient_norm);
  optimizer_.step(step.rate, clip_divisor(step.gradient_norm, options_.clip));
  optimizer_.clear_gradients();
  return step;
}

// Forward and backward of the step's batches; returns their mean loss.
double Trainer::accumulate_gradients() {
  // Dropout draws from torch's generator: seeded by the step, so that a resumed run draws the same.
  at::manual_seed(RandomStream(uint64_t(options_.seed), "dropout").bits(uint64_t(state_.step)));
  Tensor total;
  for (int64_t i = 0; i < options_.accumulate; ++i) {
    const TrainingBatch batch = batches_->next(state_.data);
    const at::Device device = model_->device();
    Batch about{.cu_seqlens = batch.cu_seqlens, .training = true};
    if (about.cu_seqlens) about.cu_seqlens = about.cu_seqlens->to(device);
    Tensor loss;
    {
      const Autocast autocast(device, options_.compute_type());
      loss = model_->loss(batch.tokens.to(device), batch.targets.to(device), about) / double(options_.accumulate);
    }
    loss.backward();
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  return total.item<double>();
}

void Trainer::require_finite(const char* what, double value) const {
  if (std::isfinite(value)) return;
  throw Failure(concat("[train] the ", what, " is ", std::isnan(value) ? "nan" : "inf", " at step ", state_.step + 1,
                       "; stopped, the checkpoint of step ", saved_step_, " is kept in ", folder_.path));
}

bool Trainer::validation_due() const {
  if (!validation_ || state_.step == 0 || state_.validated_step == state_.step) return false;
  return state_.step % options_.evaluate_every == 0 || state_.step >= options_.steps;
}

// Validates, and keeps the weights if they are the best so far. False: interrupted, and still due.
bool Trainer::validate(const std::function<bool()>& stop) {
  EvaluateOptions evaluation{.context = options_.context,
                             .limit = options_.evaluate_batches * options_.batch * options_.context};
  evaluation.progress = [&stop](int64_t done, int64_t total) {
    if (done < total && stop && stop()) throw Interrupted{};
  };
  double loss = 0;
  try {
    const Autocast autocast(model_->device(), options_.compute_type());
    loss = evaluate_loss(*model_, *validation_, evaluation).loss();
  } catch (const Interrupted&) {
    return false;
  }
  require_finite("validation loss", loss);
  state_.validation_loss = loss;
  state_.validated_step = state_.step;
  if (loss < state_.best_loss) {
    state_.best_loss = loss;
    state_.best_step = state_.step;
    save_weights(*model_, folder_.best(), {{"step", std::to_string(state_.step)}, {"validation_loss", concat(loss)}});
  }
  metrics_->write({{"step", state_.step}, {"validation_loss", loss}, {"seconds", state_.seconds}});
  return true;
}

void Trainer::log(const Step& step) {
  metrics_->write({{"step", state_.step},
                   {"loss", step.loss},
                   {"rate", step.rate},
                   {"gradient_norm", step.gradient_norm},
                   {"tokens_per_second", double(interval_tokens_) / interval_seconds_},
                   {"seconds", state_.seconds}});
  interval_tokens_ = 0;
  interval_seconds_ = 0;
}

// The trainer's file first: it alone decides where a resumed run starts.
void Trainer::checkpoint() {
  save_trainer(folder_.trainer(), *model_, optimizer_, state_, about_);
  save_weights(*model_, folder_.last(), {{"step", std::to_string(state_.step)}});
  if (options_.lora) save_lora(folder_.adapters(), lora_weights(*model_), *options_.lora);
  Json summary = state_.to_json();
  summary["steps"] = options_.steps;
  summary["about"] = about_;
  write_file(folder_.summary(), summary.dump(2) + "\n");
  saved_step_ = state_.step;
}

}  // namespace cortado
