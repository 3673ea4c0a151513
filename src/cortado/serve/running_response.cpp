#include "cortado/base/error.h"
#include "cortado/serve/responses.h"

namespace cortado {

namespace {

using namespace std::chrono_literals;

constexpr auto kLookForReader = 50ms;

}  // namespace

Json RunningResponse::object() const {
  const std::lock_guard lock(mutex_);
  return response_;
}

std::string RunningResponse::failure() const {
  const std::lock_guard lock(mutex_);
  return response_.at("status") == "failed" ? response_.at("error").at("message").get<std::string>() : "";
}

void RunningResponse::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (response_["status"] == "in_progress") response_["status"] = "cancelled";
  }
  answer_->cancel();
}

void RunningResponse::forget() {
  store_ = false;
  cancel();
}

// Returns the response's only output item.
Json RunningResponse::message(const char* status) const {
  const ServedModel& served = engine_->models()[answer_->request().model];
  return {{"id", message_id_},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", Json::array({{{"type", "output_text"},
                                    {"text", text_},
                                    {"annotations", Json::array()},
                                    {"logprobs", token_scores(served, scores_)}}})}};
}

Json RunningResponse::usage() const {
  const auto prompt = static_cast<int64_t>(answer_->request().tokens.size()), written = answer_->written_tokens();
  Json usage = {{"input_tokens", prompt},
                {"input_tokens_details", {{"cached_tokens", answer_->cached_tokens()}}},
                {"output_tokens", written},
                {"output_tokens_details", {{"reasoning_tokens", 0}}},
                {"total_tokens", prompt + written}};
  usage.update(memory_of(engine_->models()[answer_->request().model], {answer_}));
  return usage;
}

bool RunningResponse::tell_of(const Tell& tell, const char* type, const Json& event) {
  if (!stream_) return true;
  Json whole = {{"type", type}, {"sequence_number", events_++}};
  whole.update(event);
  return tell(whole);
}

// Completes the response. It is stored before its end becomes visible, because a client may continue it at once.
void RunningResponse::finish(Finish finish) {
  const WrittenAnswer& written = answer_->written(0);
  const auto& tokenizer = *engine_->models()[answer_->request().model].tokenizer;
  const bool closed = !written.tokens.empty() && tokenizer.special().is_stop(written.tokens.back());
  StoredResponse stored{
      .id = id_, .record = record_, .model = answer_->request().model, .tokens = answer_->request().tokens};
  Json ended = object();
  const bool cancelled = ended.at("status") == "cancelled", whole = finish == Finish::kStop && !cancelled;
  if (!cancelled) ended["status"] = whole ? "completed" : "incomplete";
  if (!whole && !cancelled) ended["incomplete_details"] = {{"reason", "max_output_tokens"}};
  ended["output"] = Json::array({message(whole ? "completed" : "incomplete")});
  ended["usage"] = usage();
  stored.record["response"] = ended;
  // A model without a chat template continues a text before the token that ended it.
  const bool text = closed && !tokenizer.special().chat.taught();
  stored.tokens.insert(stored.tokens.end(), written.tokens.begin(), written.tokens.end() - (text ? 1 : 0));
  stored.record["messages"].push_back(chat_message("assistant", text_));
  if (const auto& snapshot = written.snapshot) {
    stored.snapshot = {snapshot, snapshot->state.position.cpu()[0].item<int64_t>()};
  }
  if (store_) keep(std::move(stored));
  const std::lock_guard lock(mutex_);
  response_ = std::move(ended);
}

// If the store is full or the state too large, stores the response without its state; it is then read again.
void RunningResponse::keep(StoredResponse stored) {
  try {
    response_store_->put(stored);
  } catch (const std::exception&) {
    if (!stored.snapshot.snapshot) throw;
    stored.snapshot = {};
    response_store_->put(stored);
  }
}

// Stores the failure, if possible, for clients that ask later.
void RunningResponse::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    response_["status"] = "failed";
    response_["error"] = {{"code", "server_error"}, {"message", why}};
  }
  if (!store_) return;
  StoredResponse stored{
      .id = id_, .record = record_, .model = answer_->request().model, .tokens = answer_->request().tokens};
  stored.record["response"] = object();
  try {
    response_store_->put(stored);
  } catch (const std::exception&) {  // the store itself has failed
  }
}

bool RunningResponse::follow(const Tell& tell) {
  const Json place = {{"item_id", message_id_}, {"output_index", 0}, {"content_index", 0}};
  const auto at = [&](const Json& more) {
    Json event = place;
    event.update(more);
    return event;
  };
  AnswerPart part;
  while (true) {
    const auto got = answer_->next(part, kLookForReader);
    if (got == Answer::Got::kEnd) return true;
    if (got == Answer::Got::kNone) {
      if (!tell(nullptr)) return false;
      continue;
    }
    text_ += part.text;
    const ServedModel& served = engine_->models()[answer_->request().model];
    const Json scores = token_scores(served, part.scores);
    scores_.insert(scores_.end(), part.scores.begin(), part.scores.end());
    const bool go_on = part.text.empty() ||
                       tell_of(tell, "response.output_text.delta", at({{"delta", part.text}, {"logprobs", scores}}));
    if (part.finish) {
      finish(*part.finish);
      const Json whole = message("completed").at("content")[0];
      return tell_of(tell, "response.output_text.done", at({{"text", text_}, {"logprobs", whole.at("logprobs")}})) &&
             tell_of(tell, "response.content_part.done", at({{"part", whole}})) &&
             tell_of(tell, "response.output_item.done", {{"output_index", 0}, {"item", object().at("output")[0]}});
    }
    if (!go_on) return false;
  }
}

bool RunningResponse::make(const Tell& tell) {
  Json item = {{"id", message_id_},
               {"type", "message"},
               {"status", "in_progress"},
               {"role", "assistant"},
               {"content", Json::array()}};
  const Json part = {
      {"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
  bool there = tell_of(tell, "response.created", {{"response", object()}}) &&
               tell_of(tell, "response.in_progress", {{"response", object()}}) &&
               tell_of(tell, "response.output_item.added", {{"output_index", 0}, {"item", item}}) &&
               tell_of(tell, "response.content_part.added",
                       {{"item_id", message_id_}, {"output_index", 0}, {"content_index", 0}, {"part", part}});
  try {
    there = there && follow(tell);
  } catch (const std::exception& error) {
    fail(error.what());
    if (!stream_) throw;
  }
  if (!there) {
    answer_->cancel();
    return false;
  }
  const Json ended = object();
  const std::string status = ended.at("status");
  const std::string type = status == "cancelled" ? "response.incomplete" : "response." + status;
  return tell_of(tell, type.c_str(), {{"response", ended}});
}

}  // namespace cortado
