#include "cortado/evaluate/context_loss.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "cortado/base/error.h"

namespace cortado {

namespace {

void check_window(const LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options) {
  const auto& config = model.config();
  fail_input_if(options.length < 2 || options.count < 1 || options.tokens_per_call < 1,
                "[evaluate] a length must be >= 2, the tokens to predict and those in a call >= 1, got ",
                options.length, ", ", options.count, " and ", options.tokens_per_call);
  fail_input_if(options.first < options.length / 2, "[evaluate] the first token to predict, ", options.first,
                ", must have half a length, ", options.length / 2, ", before it");
  fail_input_if(options.first + options.count > tokens.size(0), "[evaluate] the text has ", tokens.size(0), " tokens, ",
                options.first + options.count, " are needed");
  const int64_t longest = options.length + static_cast<int64_t>(options.begin.size());
  fail_input_if(config.positions == PositionKind::kLearned && longest > config.context, "[evaluate] length ", longest,
                " is beyond the model's learned positions: it has ", config.context);
}

// Several windows of one length at once.
class Windows {
 public:
  // The first predicts from `first` on; each of `rows` predicts `count` tokens after the marks and half a length of
  // others.
  Windows(LanguageModel& model, const at::Tensor& tokens, const at::Tensor& marks, int64_t first, int64_t rows,
          int64_t count, int64_t half)
      : model_(model), rows_(rows), half_(marks.size(0) + half), length_(half_ + count - 1) {
    // [rows, marks + half + count]: a window's input and, one further on, its targets.
    tokens_ = at::cat(
        {marks.expand({rows, -1}), tokens.slice(0, first - half, first + rows * count).unfold(0, half + count, count)},
        1);
  }

  // Adds the loss to `result`. `read`: called with the tokens of each piece.
  template <typename Read>
  void score(int64_t tokens_per_call, Evaluation& result, const Read& read) {
    const int64_t piece = std::max<int64_t>(1, tokens_per_call / rows_);
    ModelState state;
    if (piece < length_) state = model_.zero_state(rows_);
    for (int64_t begin = 0; begin < length_; begin += piece) {
      const int64_t end = std::min(begin + piece, length_);
      const at::Tensor input = tokens_.slice(1, begin, end).contiguous().to(model_.device());
      const at::Tensor hidden = model_.hidden(input, {}, piece < length_ ? &state : nullptr);
      // The input's token j predicts token j + 1, which counts from `half` on.
      const int64_t scored = std::max(begin, half_ - 1);
      if (scored < end) {
        const at::Tensor targets = tokens_.slice(1, scored + 1, end + 1).flatten();
        add_scores(model_, hidden.slice(1, scored - begin).flatten(0, 1), targets, result);
      }
      read(rows_ * (end - begin));
    }
  }

 private:
  LanguageModel& model_;
  int64_t rows_, half_, length_;  // half_: what is only read
  at::Tensor tokens_;
};

}  // namespace

Evaluation evaluate_in_context(LanguageModel& model, const at::Tensor& tokens, const ContextLossOptions& options) {
  const at::NoGradGuard no_grad;
  check_window(model, tokens, options);
  const int64_t half = options.length / 2, whole = options.count / half, rest = options.count % half;
  const int64_t most = std::max<int64_t>(1, options.tokens_per_call / (2 * half - 1));
  const at::Tensor marks = at::tensor(options.begin, at::kLong);
  const int64_t read_only = marks.size(0) + half - 1;
  const int64_t total = whole * (read_only + half) + (rest ? read_only + rest : 0);
  Evaluation result;
  int64_t done = 0;
  const auto read = [&](int64_t count) {
    done += count;
    if (options.progress) options.progress(done, total);
  };
  for (int64_t i = 0; i < whole; i += most) {
    const int64_t rows = std::min(most, whole - i);
    Windows(model, tokens, marks, options.first + i * half, rows, half, half)
        .score(options.tokens_per_call, result, read);
  }
  if (rest) {
    const int64_t first = options.first + whole * half;
    Windows(model, tokens, marks, first, 1, rest, half).score(options.tokens_per_call, result, read);
  }
  return result;
}

}  // namespace cortado
