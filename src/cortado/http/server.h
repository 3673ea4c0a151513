// Serves the engine over HTTP: OpenAI's endpoints, health and metrics.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/http/log.h"
#include "cortado/http/page.h"
#include "cortado/serve/responses.h"
#include "cortado/serve/wire.h"

namespace cortado {

// Options of the server.
struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: any free port
  // An origin whose pages may call the server, or "*"; empty: only its own page.
  std::string cors = {};
  std::vector<std::string> keys = {};      // if any, requests need "Authorization: Bearer KEY"
  int64_t body_bytes = int64_t{64} << 20;  // largest request body
  int64_t connections = 256;               // largest number of connections at a time
  LogForm log = LogForm::kText;
  WireLimits limits = {};
  Page page = {};
};

// GET  /v1/models, /v1/models/NAME, /tokenizer_info, /health, /metrics
// GET  / and the other files of the page
// POST /v1/completions, /v1/chat/completions, /v1/responses, /v1/inspect, /tokenize, /detokenize
// and GET, DELETE /v1/responses/ID, GET .../input_items, POST .../cancel
//
// The rows of a client that hangs up are freed. Every error has the form of OpenAI's error object.
class HttpServer {
 public:
  // Throws InputError if the address can't be bound.
  HttpServer(Engine& engine, Responses& responses, HttpOptions options);
  ~HttpServer();
  std::string address() const;  // "http://127.0.0.1:8080"
  void listen();                // serves until stop() is called
  bool running() const;         // true within listen(), when stop() has an effect
  void stop();                  // accepts no more connections; does not wait for open ones
  bool take_large_bodies();     // whether a request with a large body has ended since the last call

 private:
  struct Implementation;
  std::unique_ptr<Implementation> it_;
};

}  // namespace cortado
