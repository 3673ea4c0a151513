// Logs and counts every finished request, without its content.
#pragma once

#include <httplib.h>

#include <string>

#include "cortado/serve/metrics.h"

namespace cortado {

enum class LogForm { kNone, kText, kJson };

// Writes to standard error and to the counters of /metrics. Thread-safe.
class RequestLog {
 public:
  RequestLog(Metrics& metrics, LogForm form) : metrics_(metrics), form_(form) {}

  // Called in the connection's thread; includes the reason if the answer failed.
  void ended(const httplib::Request& request, const httplib::Response& response);
  // Logs the failure of an answer that no connection waits for.
  void failed(const std::string& path, const std::string& why);

 private:
  void count_failure(const std::string& path);

  Metrics& metrics_;
  LogForm form_;
};

}  // namespace cortado
