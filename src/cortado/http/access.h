// Who may call: by the name that the server is called by, the origin of the page, and the key.
#pragma once

#include <httplib.h>

#include <optional>

#include "cortado/http/server.h"

namespace cortado {

class Access {
 public:
  explicit Access(const HttpOptions& options) : options_(options) {}  // which outlive it

  // Why a caller is turned away; none: he is not.
  std::optional<WireError> refusal(const httplib::Request& request) const;
  // Says so to the pages of the origin that --cors names.
  void allow_origin(const httplib::Request& request, httplib::Response& response) const;

 private:
  bool allowed_host(const httplib::Request& request) const;
  bool allowed_origin(const httplib::Request& request) const;
  bool has_key(const httplib::Request& request) const;

  const HttpOptions& options_;
};

}  // namespace cortado
