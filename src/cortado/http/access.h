// Access control: the Host header, the origin of the page, and the API key.
#pragma once

#include <httplib.h>

#include <optional>

#include "cortado/http/server.h"

namespace cortado {

// Decides which requests are allowed.
class Access {
 public:
  explicit Access(const HttpOptions& options) : options_(options) {}  // the options must outlive this

  // Returns why a request is refused; nothing if it is allowed.
  std::optional<WireError> refusal(const httplib::Request& request) const;
  // Adds the CORS headers for the origin that --cors names.
  void allow_origin(const httplib::Request& request, httplib::Response& response) const;

 private:
  bool allowed_host(const httplib::Request& request) const;
  bool allowed_origin(const httplib::Request& request) const;
  bool has_key(const httplib::Request& request) const;

  const HttpOptions& options_;
};

}  // namespace cortado
