#include "cortado/http/access.h"

#include <string>

#include "cortado/base/error.h"

namespace cortado {

namespace {

// Compares in constant time, so that the time does not reveal how much of the key is right.
bool same_secret(const std::string& given, const std::string& secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto other = static_cast<unsigned char>(secret.empty() ? 0 : secret[i % secret.size()]);
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^ other);
  }
  return difference == 0;
}

}  // namespace

// Protects against DNS rebinding: a page's author can let a name point to this machine, and a browser here would take
// the server for the page's own. A server that listens on localhost only must be called by a name of localhost.
bool Access::allowed_host(const httplib::Request& request) const {
  const std::string given = request.get_header_value("Host");
  const auto is_home = [](const std::string& name) {
    return name == "127.0.0.1" || name == "localhost" || name == "::1" || name == "[::1]";
  };
  if (!is_home(options_.host) || given.empty()) return true;
  const size_t colon = given.rfind(':');
  const bool port = colon != std::string::npos && given.find(']', colon) == std::string::npos;
  return is_home(port ? given.substr(0, colon) : given);
}

bool Access::allowed_origin(const httplib::Request& request) const {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty() || options_.cors == "*" || origin == options_.cors) return true;
  const std::string host = request.get_header_value("Host");
  return origin == "http://" + host || origin == "https://" + host;
}

bool Access::has_key(const httplib::Request& request) const {
  if (options_.keys.empty()) return true;
  const std::string given = request.get_header_value("Authorization");
  bool found = false;
  for (const auto& key : options_.keys) found |= same_secret(given, "Bearer " + key);
  return found;
}

// Returns an error if the request must be refused.
std::optional<WireError> Access::refusal(const httplib::Request& request) const {
  if (!allowed_host(request)) {
    return WireError(403, "this server listens at home alone: a proxy must call it by 127.0.0.1 or localhost", "",
                     "host_not_allowed");
  }
  // Otherwise a page of another origin could make a browser on this machine call a server that listens on localhost
  // only.
  if (!allowed_origin(request)) {
    return WireError(403, "pages of this origin may not call: --cors allows one", "", "origin_not_allowed");
  }
  const bool open = request.path == "/health" || (request.method == "GET" && options_.page.contains(request.path));
  if (open || request.method == "OPTIONS" || has_key(request)) return std::nullopt;
  return WireError(401, "the API key is missing or wrong", "", "invalid_api_key");
}

// Answers a browser's preflight request for the origin that --cors names: all headers are allowed.
void Access::allow_origin(const httplib::Request& request, httplib::Response& response) const {
  response.set_header("Access-Control-Allow-Origin", options_.cors);
  response.set_header("Access-Control-Expose-Headers", "*");
  if (request.method != "OPTIONS") return;
  const auto echo = [&](const char* asked, const char* allowed, const char* fallback) {
    const std::string wanted = request.get_header_value(asked);
    response.set_header(allowed, wanted.empty() ? fallback : wanted);
  };
  echo("Access-Control-Request-Headers", "Access-Control-Allow-Headers", "Authorization, Content-Type");
  echo("Access-Control-Request-Method", "Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  if (request.has_header("Access-Control-Request-Private-Network")) {
    response.set_header("Access-Control-Allow-Private-Network", "true");
  }
  response.set_header("Access-Control-Max-Age", "600");
}

}  // namespace cortado
