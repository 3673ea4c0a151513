// A small Redis client, based on hiredis.
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

// One connection, restored when it is lost. Thread-safe; threads take turns.
class Redis {
 public:
  // Accepts "redis://HOST:PORT" and "redis://HOST". Throws InputError for other forms and Failure if nobody answers.
  explicit Redis(const std::string& address);

  void set(const std::string& key, const std::string& value, double seconds);
  std::optional<std::string> get(const std::string& key);
  bool remove(const std::string& key);
  void check();  // throws Failure if nobody answers

 private:
  struct Free {
    void operator()(redisContext* context) const;
    void operator()(redisReply* reply) const;
  };
  using Reply = std::unique_ptr<redisReply, Free>;

  void connect();
  // Runs a command, with one retry on a new connection. Throws Failure.
  Reply command(const std::vector<std::string>& words);

  std::string address_, host_;
  int port_ = 6379;
  std::mutex mutex_;
  std::unique_ptr<redisContext, Free> context_;
  std::chrono::steady_clock::time_point lost_ = {};  // time of the last failure
};

}  // namespace cortado
