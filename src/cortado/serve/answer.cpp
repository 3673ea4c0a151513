#include "cortado/serve/answer.h"

#include <iterator>

namespace cortado {

Answer::Got Answer::next(AnswerPart& part, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, longest, [&] { return !parts_.empty() || unfinished_ == 0 || error_; });
  if (!parts_.empty()) {
    part = std::move(parts_.front());
    parts_.pop_front();
    return Got::kPart;
  }
  if (error_) std::rethrow_exception(error_);
  return unfinished_ == 0 ? Got::kEnd : Got::kNone;
}

int64_t Answer::written_tokens() const {
  int64_t count = 0;
  for (const auto& written : written_) count += static_cast<int64_t>(written.tokens.size());
  return count;
}

void Answer::add_prompt_scores(std::vector<ScoredToken> scores) {
  std::move(scores.begin(), scores.end(), std::back_inserter(prompt_scores_));
}

void Answer::push(AnswerPart part) {
  {
    const std::lock_guard lock(mutex_);
    parts_.push_back(std::move(part));
  }
  changed_.notify_all();
}

void Answer::finish(AnswerPart part, WrittenAnswer written) {
  {
    const std::lock_guard lock(mutex_);
    written_[static_cast<size_t>(part.choice)] = std::move(written);
    parts_.push_back(std::move(part));
    --unfinished_;
  }
  changed_.notify_all();
}

void Answer::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (unfinished_ == 0) return;  // all answers had ended
    error_ = std::move(error);
  }
  changed_.notify_all();
}

double Answer::age() const { return std::chrono::duration<double>(Clock::now() - asked_).count(); }

bool Answer::late() const { return request_.seconds > 0 && age() > request_.seconds; }

}  // namespace cortado
