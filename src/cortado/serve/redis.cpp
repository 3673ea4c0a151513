#include "cortado/serve/redis.h"

#include <hiredis/hiredis.h>

#include <cmath>

#include "cortado/base/error.h"

namespace cortado {

namespace {

constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
constexpr auto kPause = std::chrono::seconds(2);

}  // namespace

void Redis::Free::operator()(redisContext* context) const { redisFree(context); }
void Redis::Free::operator()(redisReply* reply) const { freeReplyObject(reply); }

Redis::Redis(const std::string& address) : address_(address) {
  constexpr std::string_view kScheme = "redis://";
  fail_input_if(!address.starts_with(kScheme), "[redis] expected redis://HOST:PORT, got ", address);
  host_ = address.substr(kScheme.size());
  if (host_.ends_with('/')) host_.pop_back();
  if (const size_t colon = host_.rfind(':'); colon != std::string::npos) {
    const std::string port = host_.substr(colon + 1);
    const bool number = !port.empty() && port.size() < 6 && port.find_first_not_of("0123456789") == std::string::npos;
    fail_input_if(!number || std::stoi(port) < 1 || std::stoi(port) > 65535, "[redis] expected redis://HOST:PORT, got ",
                  address);
    port_ = std::stoi(port);
    host_.resize(colon);
  }
  fail_input_if(host_.empty() || host_.find_first_of("/@") != std::string::npos,
                "[redis] expected redis://HOST:PORT, got ", address);
  connect();
}

// For a short time after a failure, fails at once, so that waiting threads do not each wait for the whole timeout.
void Redis::connect() {
  const auto now = std::chrono::steady_clock::now();
  if (lost_ != std::chrono::steady_clock::time_point{} && now - lost_ < kPause) {
    throw Failure(concat("[redis] ", address_, " does not answer"));
  }
  context_.reset(redisConnectWithTimeout(host_.c_str(), port_, kPatience));
  if (!context_ || context_->err) {
    const std::string why = context_ ? context_->errstr : "no memory";
    context_.reset();
    lost_ = std::chrono::steady_clock::now();
    throw Failure(concat("[redis] ", address_, " does not answer: ", why));
  }
  lost_ = {};
  redisSetTimeout(context_.get(), kPatience);
}

Redis::Reply Redis::command(const std::vector<std::string>& words) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const auto& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  const std::lock_guard lock(mutex_);
  std::string why;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (!context_ || context_->err) connect();
    Reply reply(static_cast<redisReply*>(
        redisCommandArgv(context_.get(), static_cast<int>(words.size()), texts.data(), sizes.data())));
    if (reply && reply->type != REDIS_REPLY_ERROR) return reply;
    if (reply) throw Failure(concat("[redis] ", address_, ": ", reply->str));
    why = context_->errstr;
    context_.reset();
  }
  throw Failure(concat("[redis] ", address_, " was lost: ", why));
}

void Redis::set(const std::string& key, const std::string& value, double seconds) {
  const auto whole = std::to_string(std::max<int64_t>(1, std::llround(seconds)));
  command({"SET", key, value, "EX", whole});
}

std::optional<std::string> Redis::get(const std::string& key) {
  const Reply reply = command({"GET", key});
  if (reply->type != REDIS_REPLY_STRING) return std::nullopt;
  return std::string(reply->str, reply->len);
}

bool Redis::remove(const std::string& key) { return command({"DEL", key})->integer > 0; }
void Redis::check() { command({"PING"}); }

}  // namespace cortado
