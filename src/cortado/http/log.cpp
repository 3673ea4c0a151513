#include "cortado/http/log.h"

#include <algorithm>
#include <ctime>
#include <iostream>
#include <vector>

#include "cortado/base/error.h"
#include "cortado/http/connection.h"
#include "cortado/serve/wire.h"

namespace cortado {

namespace {

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Returns the path under which a request is counted. Unknown paths share one entry, so that clients can't create any
// number of them.
std::string known_path(const std::string& path) {
  if (path.starts_with("/v1/models/")) return "/v1/models/NAME";
  if (path.starts_with("/v1/responses/")) return "/v1/responses/ID";
  static const std::vector<std::string> kPaths = {"/v1/models",      "/v1/completions", "/v1/chat/completions",
                                                  "/v1/responses",   "/tokenize",       "/detokenize",
                                                  "/tokenizer_info", "/health",         "/metrics",
                                                  "/v1/inspect",     "/v1/embeddings"};
  return std::find(kPaths.begin(), kPaths.end(), path) == kPaths.end() ? "other" : path;
}

// Writes `entries` in this order; the text form has only their values.
void write_line(LogForm form, const Json& entries) {
  if (form == LogForm::kNone) return;
  std::string text;
  for (const auto& [key, value] : entries.items()) {
    const bool plain = value.is_string() && key != "path" && key != "reason";
    text += concat(text.empty() ? "" : " ", plain ? value.get<std::string>() : dump(value));
  }
  std::clog << (form == LogForm::kJson ? dump(entries) : text) + "\n" << std::flush;
}

}  // namespace

void RequestLog::count_failure(const std::string& path) {
  metrics_.count("cortado_failures_total", 1, concat("path=\"", path, "\""));
}

// Runs outside of the library's exception handling.
void RequestLog::ended(const httplib::Request& request, const httplib::Response& response) {
  try {
    const std::string path = known_path(request.path);
    metrics_.count("cortado_requests_total", 1, concat("path=\"", path, "\",status=\"", response.status, "\""));
    Json line = {{"time", time_now()},
                 {"client", request.remote_addr},
                 {"method", request.method},
                 {"path", request.path},
                 {"status", response.status}};
    if (const auto& why = Connection::current().failure; !why.empty()) {
      count_failure(path);
      line["reason"] = why;
    }
    write_line(form_, line);
  } catch (const std::exception&) {  // the line is lost
  }
}

void RequestLog::failed(const std::string& path, const std::string& why) {
  count_failure(path);
  write_line(form_, {{"time", time_now()}, {"path", path}, {"reason", why}});
}

}  // namespace cortado
