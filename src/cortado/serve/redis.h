// A few commands of Redis, through hiredis.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

struct redisContext;
struct redisReply;

namespace cortado {

// One connection, made anew when it has been lost. Several threads may call: they take turns.
class Redis {
 public:
  // "redis://HOST:PORT", "redis://HOST". InputError: no such form; Failure: nobody answers there.
  explicit Redis(const std::string& address);

  void set(const std::string& key, const std::string& value, double seconds);
  std::optional<std::string> get(const std::string& key);
  bool remove(const std::string& key);
  void check();  // Failure: nobody answers

 private:
  struct Free {
    void operator()(redisContext* context) const;
    void operator()(redisReply* reply) const;
  };
  using Reply = std::unique_ptr<redisReply, Free>;

  void connect();
  // Tried once more on a new connection. Failure.
  Reply command(const std::vector<std::string>& words);

  std::string address_, host_;
  int port_ = 6379;
  std::mutex mutex_;
  std::unique_ptr<redisContext, Free> context_;
  std::chrono::steady_clock::time_point lost_ = {};  // when nobody answered
};

}  // namespace cortado
