// The engine over HTTP: OpenAI's endpoints, and what says how the server does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/http/log.h"
#include "cortado/http/page.h"
#include "cortado/serve/responses.h"
#include "cortado/serve/wire.h"

namespace cortado {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;                         // 0: any that is free
  std::string cors = {};                   // an origin whose pages may call, or "*"; empty: none but its own
  std::vector<std::string> keys = {};      // "Authorization: Bearer KEY" is asked for, if there are any
  int64_t body_bytes = int64_t{64} << 20;  // of a request at most
  int64_t connections = 256;               // at once
  LogForm log = LogForm::kText;
  WireLimits limits = {};
  Page page = {};
};

// GET  /v1/models, /v1/models/NAME, /tokenizer_info, /health, /metrics
// GET  / and what else belongs to the page
// POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/inspect, /tokenize, /detokenize
// and GET, DELETE /v1/responses/ID, GET .../input_items, POST .../cancel
//
// A client that hangs up frees its rows. Every error is OpenAI's error object.
class HttpServer {
 public:
  HttpServer(Engine& engine, Responses& responses, HttpOptions options);  // InputError: the address cannot be had
  ~HttpServer();
  std::string address() const;  // "http://127.0.0.1:8080"
  void listen();                // until stop() is called
  bool running() const;         // within listen(): stop() does something
  void stop();                  // no more connections; waits for none
  bool take_large_bodies();     // whether a request that was large has ended since this was asked last

 private:
  struct Implementation;
  std::unique_ptr<Implementation> it_;
};

}  // namespace cortado
