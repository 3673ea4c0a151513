#include "cortado/http/server.h"

#include <ATen/Parallel.h>
#include <httplib.h>
#include <omp.h>
#include <sys/socket.h>

#include <ctime>
#include <iostream>
#include <set>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/version.h"
#include "cortado/serve/inspect.h"

namespace cortado {

namespace {

constexpr const char* kJson = "application/json";

// The threads of the connections. What one of them computes (a state is copied) it computes alone: see open_all of
// cli/serve.cpp.
class Workers : public httplib::ThreadPool {
 public:
  using ThreadPool::ThreadPool;
  void enqueue(std::function<void()> work) override {
    ThreadPool::enqueue([work = std::move(work)] {
      at::get_num_threads();  // asked for the first time, it sets what OpenMP is to use
      omp_set_num_threads(1);
      work();
    });
  }
};

// Nothing but what this server itself sends, no scripts in the page's text, in nobody's frame.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// In a time that does not tell how much of it is right.
bool same_secret(const std::string& given, const std::string& secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto other = static_cast<unsigned char>(secret.empty() ? 0 : secret[i % secret.size()]);
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^ other);
  }
  return difference == 0;
}

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// What a path is counted as: not every word that a client sends.
std::string known_path(const std::string& path) {
  if (path.starts_with("/v1/models/")) return "/v1/models/NAME";
  if (path.starts_with("/v1/responses/")) return "/v1/responses/ID";
  static const std::vector<std::string> kPaths = {"/v1/models",      "/v1/completions", "/v1/chat/completions",
                                                  "/v1/responses",   "/tokenize",       "/detokenize",
                                                  "/tokenizer_info", "/health",         "/metrics",
                                                  "/v1/inspect"};
  return std::find(kPaths.begin(), kPaths.end(), path) == kPaths.end() ? "other" : path;
}

void reply(httplib::Response& response, int status, const Json& json) {
  response.status = status;
  response.set_content(dump(json), kJson);
}

void reply(httplib::Response& response, const WireError& error) {
  reply(response, error.status(), error.body());
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
}

// Whatever went wrong, as OpenAI's API says it.
WireError wire_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const WireError& it) {
    return it;
  } catch (const Ending& it) {
    return {503, it.what(), "", "server_ending"};
  } catch (const Busy& it) {
    return {429, it.what(), "", "rate_limit_exceeded"};
  } catch (const InputError& it) {
    return {400, it.what()};
  } catch (const c10::Error& it) {
    return {500, it.what_without_backtrace()};
  } catch (const std::exception& it) {
    return {500, it.what()};
  } catch (...) {
    return {500, "the request failed"};
  }
}

Json body_of(const std::string& body) {
  try {
    return parse_json(body, "body");
  } catch (const InputError& error) {
    throw WireError(400, error.what());
  }
}

}  // namespace

struct HttpServer::Implementation {
  Engine& engine;
  Responses& responses;
  HttpOptions options;
  httplib::Server server;
  int port = 0;
  Inspector inspector{engine, options.limits};

  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  using BodyHandler = std::function<void(const httplib::Request&, httplib::Response&, const std::string& body)>;

  Handler guarded(const Handler& handler) {
    return [handler](const httplib::Request& request, httplib::Response& response) {
      try {
        handler(request, response);
      } catch (...) {
        reply(response, wire_error(std::current_exception()));
      }
    };
  }
  void get(const char* path, const Handler& handler) { server.Get(path, guarded(handler)); }
  void remove(const char* path, const BodyHandler& handler) { server.Delete(path, with_body(handler)); }
  void post(const char* path, const BodyHandler& handler) { server.Post(path, with_body(handler)); }
  httplib::Server::HandlerWithContentReader with_body(const BodyHandler& handler);
  std::string whole_body(const httplib::ContentReader& read, const httplib::Response& response, bool wanted) const;

  httplib::Server::HandlerResponse before(const httplib::Request& request, httplib::Response& response) const;
  std::optional<WireError> refusal(const httplib::Request& request) const;
  bool allowed_host(const httplib::Request& request) const;
  bool allowed_origin(const httplib::Request& request) const;
  bool has_key(const httplib::Request& request) const;
  void allow_origin(const httplib::Request& request, httplib::Response& response) const;
  void log(const httplib::Request& request, const httplib::Response& response);
  void answer(const std::string& bytes, httplib::Response& response, bool chat);
  void respond(const std::string& bytes, httplib::Response& response);
  void health(httplib::Response& response) const;
  std::string metrics() const;
  void add_endpoints();
  void add_responses();
  void add_page();
  void add_others();
  void set_up();
};

// The body is read here: the library would take what curl sends for a form, of 8 KiB at most, and not count what it
// unpacks. It is read where the caller is refused, too: who is still sending does not see an answer.
httplib::Server::HandlerWithContentReader HttpServer::Implementation::with_body(const BodyHandler& handler) {
  return [this, handler](const httplib::Request& request, httplib::Response& response,
                         const httplib::ContentReader& read) {
    guarded([&](const httplib::Request& it, httplib::Response& its) {
      const auto refused = refusal(it);
      const std::string body = whole_body(read, its, !refused);
      if (refused) throw *refused;
      handler(it, its, body);
    })(request, response);
  };
}

std::string HttpServer::Implementation::whole_body(const httplib::ContentReader& read,
                                                   const httplib::Response& response, bool wanted) const {
  std::string body;
  size_t size = 0;
  const bool whole = read([&](const char* bytes, size_t count) {
    size += count;
    const bool fits = size <= static_cast<size_t>(options.body_bytes);
    if (fits && wanted) body.append(bytes, count);
    return fits;
  });
  // The library says so where the length is told beforehand.
  if (size > static_cast<size_t>(options.body_bytes) || response.status == 413) {
    throw WireError(413, "the request is larger than this server takes");
  }
  if (!whole) throw WireError(400, "the request ended before its body");
  return body;
}

// A name that a page's author can let point to this machine makes a browser here take the server for the page's own:
// who listens at home alone is called by home's names alone.
bool HttpServer::Implementation::allowed_host(const httplib::Request& request) const {
  const std::string given = request.get_header_value("Host");
  const auto is_home = [](const std::string& name) {
    return name == "127.0.0.1" || name == "localhost" || name == "::1" || name == "[::1]";
  };
  if (!is_home(options.host) || given.empty()) return true;
  const size_t colon = given.rfind(':');
  const bool port = colon != std::string::npos && given.find(']', colon) == std::string::npos;
  return is_home(port ? given.substr(0, colon) : given);
}

bool HttpServer::Implementation::allowed_origin(const httplib::Request& request) const {
  const std::string origin = request.get_header_value("Origin");
  if (origin.empty() || options.cors == "*" || origin == options.cors) return true;
  const std::string host = request.get_header_value("Host");
  return origin == "http://" + host || origin == "https://" + host;
}

bool HttpServer::Implementation::has_key(const httplib::Request& request) const {
  if (options.keys.empty()) return true;
  const std::string given = request.get_header_value("Authorization");
  bool found = false;
  for (const auto& key : options.keys) found |= same_secret(given, "Bearer " + key);
  return found;
}

// Whether a caller is turned away.
std::optional<WireError> HttpServer::Implementation::refusal(const httplib::Request& request) const {
  if (!allowed_host(request)) {
    return WireError(403, "this server listens at home alone: a proxy must call it by 127.0.0.1 or localhost", "",
                     "host_not_allowed");
  }
  // A page of another origin could otherwise make a browser here call a server that only listens at home.
  if (!allowed_origin(request)) {
    return WireError(403, "pages of this origin may not call: --cors allows one", "", "origin_not_allowed");
  }
  const bool open = request.path == "/health" || (request.method == "GET" && options.page.contains(request.path));
  if (open || request.method == "OPTIONS" || has_key(request)) return std::nullopt;
  return WireError(401, "the API key is missing or wrong", "", "invalid_api_key");
}

// What a browser asks before a page of the origin that --cors names may call: it may send whatever it wants to.
void HttpServer::Implementation::allow_origin(const httplib::Request& request, httplib::Response& response) const {
  response.set_header("Access-Control-Allow-Origin", options.cors);
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

// Before anything is read; those that may have a body are looked at when it is (with_body).
httplib::Server::HandlerResponse HttpServer::Implementation::before(const httplib::Request& request,
                                                                    httplib::Response& response) const {
  using Handled = httplib::Server::HandlerResponse;
  response.set_header("X-Content-Type-Options", "nosniff");
  if (!options.cors.empty()) allow_origin(request, response);
  static const std::set<std::string> kWithBody = {"POST", "PUT", "PATCH", "DELETE"};
  if (kWithBody.contains(request.method)) return Handled::Unhandled;
  if (const auto refused = refusal(request)) {
    reply(response, *refused);
    return Handled::Handled;
  }
  if (request.method != "OPTIONS") return Handled::Unhandled;
  response.status = 204;
  return Handled::Handled;
}

// Outside of what the library guards.
void HttpServer::Implementation::log(const httplib::Request& request, const httplib::Response& response) {
  try {
    engine.metrics().count("cortado_requests_total", 1,
                           concat("path=\"", known_path(request.path), "\",status=\"", response.status, "\""));
    if (options.log == HttpOptions::Log::kNone) return;
    const Json line = {{"time", time_now()},
                       {"client", request.remote_addr},
                       {"method", request.method},
                       {"path", request.path},
                       {"status", response.status}};
    const std::string text = options.log == HttpOptions::Log::kJson
                                 ? dump(line)
                                 : concat(line["time"].get<std::string>(), " ", request.remote_addr, " ",
                                          request.method, " ", dump(request.path), " ", response.status);
    std::clog << text + "\n" << std::flush;
  } catch (const std::exception&) {  // a line is missing
  }
}

// Through a content provider, for nothing else tells that a client has hung up. `write_all` gets what writes bytes, and
// whether there is still a reader; `failed` says in the answer's form what went wrong in its middle.
template <typename WriteAll>
void provide(httplib::Response& response, bool stream, const WriteAll& write_all) {
  if (stream) response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider(
      stream ? "text/event-stream" : kJson, [write_all, stream](size_t, httplib::DataSink& sink) {
        const auto write = [&](const std::string& bytes) {
          return sink.is_writable() && (bytes.empty() || sink.write(bytes.data(), bytes.size()));
        };
        try {
          if (!write_all(write)) return false;
        } catch (...) {
          // The status has been sent: what is no stream breaks off, so that nobody takes an error for an answer.
          if (!stream) return false;
          write("data: " + dump(wire_error(std::current_exception()).body()) + "\n\n");
        }
        sink.done();
        return true;
      });
}

// Fields that nobody here knows are not looked at, and are said.
void tell_unknown(httplib::Response& response, const std::vector<std::string>& fields) {
  constexpr size_t kMost = 1000;
  std::string names;
  for (const std::string& field : fields) {
    const bool plain = std::all_of(field.begin(), field.end(), [](char c) { return c > ' ' && c <= '~' && c != ','; });
    if (plain && names.size() + field.size() < kMost) names += (names.empty() ? "" : ", ") + field;
  }
  if (!names.empty()) response.set_header("X-Ignored-Fields", names);
}

void HttpServer::Implementation::answer(const std::string& bytes, httplib::Response& response, bool chat) {
  const Json body = body_of(bytes);
  Call call = chat ? read_chat(body, engine, options.limits) : read_completion(body, engine, options.limits);
  const bool stream = call.stream;
  tell_unknown(response, call.unknown);
  const auto its = std::make_shared<Reply>(std::move(call), engine);
  provide(response, stream, [its](const Reply::Write& write) { return its->write_all(write); });
}

void HttpServer::Implementation::respond(const std::string& bytes, httplib::Response& response) {
  const auto made = responses.create(body_of(bytes));
  tell_unknown(response, made->unknown());
  if (made->in_background()) {
    reply(response, 200, made->object());
    return responses.run_in_background(made);
  }
  provide(response, made->streams(), [made](const Reply::Write& write) {
    const bool there = made->make([&](const Json& event) {
      if (event.is_null()) return write("");
      return write(concat("event: ", event.at("type").get<std::string>(), "\ndata: ", dump(event), "\n\n"));
    });
    return there && (made->streams() || write(dump(made->object())));
  });
}

void HttpServer::Implementation::health(httplib::Response& response) const {
  const auto load = engine.load();
  reply(response, load.ending ? 503 : 200,  // so that a proxy goes elsewhere
        {{"status", load.ending ? "ending" : "ok"},
         {"version", kVersion},
         {"waiting", load.waiting},
         {"reading", load.reading},
         {"writing", load.writing}});
}

std::string HttpServer::Implementation::metrics() const {
  const auto load = engine.load();
  return engine.metrics().text({{"cortado_waiting", load.waiting},
                                {"cortado_reading", load.reading},
                                {"cortado_writing", load.writing},
                                {"cortado_state_bytes", load.state_bytes},
                                {"cortado_cache_bytes", load.cache_bytes},
                                {"cortado_cache_snapshots", load.snapshots},
                                {"cortado_cache_evicted_total", load.evicted}});
}

void HttpServer::Implementation::add_endpoints() {
  using httplib::Request;
  using httplib::Response;
  post("/v1/completions",
       [this](const Request&, Response& response, const std::string& body) { answer(body, response, false); });
  post("/v1/chat/completions",
       [this](const Request&, Response& response, const std::string& body) { answer(body, response, true); });
  get("/v1/models", [this](const Request&, Response& response) { reply(response, 200, models_list(engine)); });
  get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    const size_t model = find_model({{"model", request.matches[1].str()}}, engine);
    reply(response, 200, model_entry(engine.models()[model]));
  });
  post("/tokenize", [this](const Request&, Response& response, const std::string& body) {
    reply(response, 200, tokenize(body_of(body), engine, options.limits));
  });
  post("/detokenize", [this](const Request&, Response& response, const std::string& body) {
    reply(response, 200, detokenize(body_of(body), engine, options.limits));
  });
  post("/v1/inspect", [this](const Request&, Response& response, const std::string& body) {
    reply(response, 200, inspector.inspect(body_of(body)));
  });
  get("/tokenizer_info", [this](const Request& request, Response& response) {
    reply(response, 200, tokenizer_info(request.get_param_value("model"), engine));
  });
  get("/health", [this](const Request&, Response& response) { health(response); });
  get("/metrics",
      [this](const Request&, Response& response) { response.set_content(metrics(), "text/plain; version=0.0.4"); });
}

void HttpServer::Implementation::add_responses() {
  using httplib::Request;
  using httplib::Response;
  constexpr const char* kOne = "/v1/responses/([^/]+)";
  post("/v1/responses",
       [this](const Request&, Response& response, const std::string& body) { respond(body, response); });
  get(kOne,
      [this](const Request& request, Response& response) { reply(response, 200, responses.get(request.matches[1])); });
  remove(kOne, [this](const Request& request, Response& response, const std::string&) {
    reply(response, 200, responses.remove(request.matches[1]));
  });
  post("/v1/responses/([^/]+)/cancel", [this](const Request& request, Response& response, const std::string&) {
    reply(response, 200, responses.cancel(request.matches[1]));
  });
  get("/v1/responses/([^/]+)/input_items", [this](const Request& request, Response& response) {
    reply(response, 200,
          responses.input_items(request.matches[1], request.get_param_value("limit"), request.get_param_value("order"),
                                request.get_param_value("after")));
  });
}

void HttpServer::Implementation::add_page() {
  server.Get("/.*", guarded([this](const httplib::Request& request, httplib::Response& response) {
               const auto file = options.page.find(request.path);
               if (file == options.page.end()) throw WireError(404, concat("there is no GET ", request.path));
               response.set_header("Content-Security-Policy", kPagePolicy);
               response.set_header("Referrer-Policy", "no-referrer");
               response.set_header("Cache-Control", "no-cache");
               response.set_content(file->second.bytes, file->second.type.c_str());
             }));
}

// What nothing else takes.
void HttpServer::Implementation::add_others() {
  const auto none = with_body([](const httplib::Request& request, httplib::Response&, const std::string&) {
    throw WireError(404, concat("there is no ", request.method, " ", request.path));
  });
  server.Post("/.*", none).Put("/.*", none).Patch("/.*", none).Delete("/.*", none);
}

void HttpServer::Implementation::set_up() {
  const auto threads = static_cast<size_t>(options.connections);
  server.new_task_queue = [threads] { return new Workers(threads); };
  server.set_payload_max_length(static_cast<size_t>(options.body_bytes));
  server.set_read_timeout(5);
  server.set_write_timeout(5);
  // A request a connection: the library does not close one that has more of a body than it has read, and would take the
  // rest for the next request. Nor does an idle client hold a thread.
  server.set_keep_alive_max_count(1);
  server.set_tcp_nodelay(true);
  // Not the library's own, which would let two servers listen on one port.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_pre_routing_handler([this](const auto& request, auto& response) { return before(request, response); });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty()) return;
    const int status = response.status;
    const std::string what = status == 404   ? concat("there is no ", request.method, " ", request.path)
                             : status == 413 ? "the request is larger than this server takes"
                                             : "the request is not understood";
    reply(response, WireError(status, what));
  });
  server.set_logger([this](const auto& request, const auto& response) { log(request, response); });
  add_endpoints();
  add_responses();
  add_page();  // it takes every path
  add_others();
}

HttpServer::HttpServer(Engine& engine, Responses& responses, HttpOptions options)
    : it_(new Implementation{.engine = engine, .responses = responses, .options = std::move(options), .server = {}}) {
  it_->set_up();
  const HttpOptions& chosen = it_->options;
  if (chosen.port == 0) {
    it_->port = it_->server.bind_to_any_port(chosen.host);
  } else if (it_->server.bind_to_port(chosen.host, chosen.port)) {
    it_->port = chosen.port;
  }
  fail_input_if(it_->port <= 0, "[serve] ", chosen.host, ":", chosen.port,
                " cannot be listened at: is another server there, or is it not this machine's address?");
}

HttpServer::~HttpServer() = default;

std::string HttpServer::address() const {
  const std::string& host = it_->options.host;
  return concat("http://", host.find(':') == std::string::npos ? host : "[" + host + "]", ":", it_->port);
}

void HttpServer::listen() { it_->server.listen_after_bind(); }
void HttpServer::stop() { it_->server.stop(); }
bool HttpServer::running() const { return it_->server.is_running(); }

}  // namespace cortado
