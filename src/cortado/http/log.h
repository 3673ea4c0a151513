// A line and a number for every request that has ended; never with what was asked.
#pragma once

#include <httplib.h>

#include <string>

#include "cortado/serve/metrics.h"

namespace cortado {

enum class LogForm { kNone, kText, kJson };

// Into the standard error stream, and into what /metrics says. Called by any thread.
class RequestLog {
 public:
  RequestLog(Metrics& metrics, LogForm form) : metrics_(metrics), form_(form) {}

  // By the thread of its connection, with the reason if its answer has failed.
  void ended(const httplib::Request& request, const httplib::Response& response);
  // An answer that no connection waits for.
  void failed(const std::string& path, const std::string& why);

 private:
  void count_failure(const std::string& path);

  Metrics& metrics_;
  LogForm form_;
};

}  // namespace cortado
