#include "cortado/http/server.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <sys/socket.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <map>
#include <set>
#include <utility>

#include "cortado/base/error.h"
#include "cortado/base/human.h"
#include "cortado/base/stopwatch.h"
#include "cortado/base/version.h"
#include "cortado/http/access.h"
#include "cortado/http/connection.h"
#include "cortado/http/log.h"
#include "cortado/serve/embeddings.h"
#include "cortado/serve/inspect.h"

namespace cortado {

namespace {

constexpr const char* kJson = "application/json";
constexpr int kHungUp = 499;  // nginx's status for "client closed request": only the log shows it

// The threads of the connections. Each of them computes (copies of states) on one thread; see open_all in
// cli/serve.cpp.
class Workers : public httplib::ThreadPool {
 public:
  using ThreadPool::ThreadPool;
  void enqueue(std::function<void()> work) override {
    ThreadPool::enqueue([work = std::move(work)] {
      // Its first call sets OpenMP's number of threads, so it must come before ours.
      at::get_num_threads();
      omp_set_num_threads(1);
      work();
    });
  }
};

// The page may load from this server only, has no inline scripts, and may not be framed.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void reply(httplib::Response& response, int status, const Json& json) {
  response.status = status;
  response.set_content(dump(json), kJson);
}

void reply(httplib::Response& response, const WireError& error) {
  reply(response, error.status(), error.body());
  if (error.status() == 429 || error.status() == 503) response.set_header("Retry-After", "1");
}

// Converts any exception to an error of OpenAI's API.
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

// Records errors of the server for the log, but not errors in a request.
void note_failure(const WireError& error) {
  if (error.status() >= 500 && error.status() != 503) Connection::current().failure = error.what();
}

// Takes the text, so that its memory is freed after parsing: an answer may take long.
Json body_of(std::string&& given) {
  const std::string body = std::move(given);
  try {
    return parse_json(body, "body");
  } catch (const InputError& error) {
    throw WireError(400, error.what());
  }
}

// Every body is read as JSON whatever its type, because curl declares a form. Only types that cannot be JSON are
// refused.
std::optional<WireError> other_type(const httplib::Request& request) {
  const std::string type = request.get_header_value("Content-Type");
  for (const char* other : {"multipart/", "image/", "audio/", "video/"}) {
    if (strncasecmp(type.c_str(), other, std::strlen(other)) != 0) continue;
    return WireError(415, concat("the body must be JSON (application/json), not ", type.substr(0, type.find(';'))));
  }
  return std::nullopt;
}

}  // namespace

struct HttpServer::Implementation {
  Engine& engine;
  Responses& responses;
  HttpOptions options;
  Listener server;
  int port = 0;
  std::vector<std::pair<std::regex, std::string>> methods = {};  // methods of every path
  Access access{options};
  RequestLog log{engine.metrics(), options.log};
  Inspector inspector{engine, options.limits};

  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  using BodyHandler = std::function<void(const httplib::Request&, httplib::Response&, std::string body)>;

  Handler guarded(const Handler& handler) {
    return [handler](const httplib::Request& request, httplib::Response& response) {
      try {
        handler(request, response);
      } catch (...) {
        const WireError error = wire_error(std::current_exception());
        note_failure(error);
        reply(response, error);
      }
    };
  }
  void get(const char* path, const Handler& handler) {
    methods.emplace_back(path, "GET");
    server.Get(path, guarded(handler));
  }
  void remove(const char* path, const BodyHandler& handler) {
    methods.emplace_back(path, "DELETE");
    server.Delete(path, with_body(handler));
  }
  void post(const char* path, const BodyHandler& handler) {
    methods.emplace_back(path, "POST");
    server.Post(path, with_body(handler));
  }
  httplib::Server::HandlerWithContentReader with_body(const BodyHandler& handler);
  std::string whole_body(const httplib::ContentReader& read, const httplib::Response& response, bool wanted) const;

  httplib::Server::HandlerResponse before(const httplib::Request& request, httplib::Response& response) const;
  void answer(std::string bytes, httplib::Response& response, bool chat);
  void respond(std::string bytes, httplib::Response& response);
  void embed(std::string bytes, httplib::Response& response);
  [[noreturn]] void refuse_method(const httplib::Request& request, httplib::Response& response) const;
  void health(httplib::Response& response) const;
  std::string metrics() const;
  void add_endpoints();
  void add_responses();
  void add_page();
  void add_others();
  void set_up();
};

// The body is read here because the library would limit curl's "forms" to 8 KiB and would not count unpacked bytes. It
// is also read if the request is refused: a client that is still sending does not see an answer.
httplib::Server::HandlerWithContentReader HttpServer::Implementation::with_body(const BodyHandler& handler) {
  return [this, handler](const httplib::Request& request, httplib::Response& response,
                         const httplib::ContentReader& read) {
    guarded([&](const httplib::Request& it, httplib::Response& its) {
      auto refused = access.refusal(it);
      if (!refused) refused = other_type(it);
      std::string body = whole_body(read, its, !refused);
      if (refused) throw *refused;
      handler(it, its, std::move(body));
    })(request, response);
  };
}

std::string HttpServer::Implementation::whole_body(const httplib::ContentReader& read,
                                                   const httplib::Response& response, bool wanted) const {
  std::string body;
  size_t size = 0;
  const bool whole = read([&](const char* bytes, size_t count) {
    size += count;
    Connection::current().bytes = size;
    const bool fits = size <= static_cast<size_t>(options.body_bytes);
    if (fits && wanted) body.append(bytes, count);
    return fits;
  });
  // The library sets 413 if the declared length is too large.
  if (size > static_cast<size_t>(options.body_bytes) || response.status == 413) {
    throw WireError(413, "the request is larger than this server takes");
  }
  if (response.status == 415) {
    throw WireError(415, "the body is packed in a way that this server does not know (Content-Encoding)");
  }
  if (!whole && wanted) throw WireError(400, "the request ended before its body");
  return body;
}

// Called before anything is read. Requests that may have a body are checked when it is read (with_body).
httplib::Server::HandlerResponse HttpServer::Implementation::before(const httplib::Request& request,
                                                                    httplib::Response& response) const {
  using Handled = httplib::Server::HandlerResponse;
  response.set_header("X-Content-Type-Options", "nosniff");
  if (!options.cors.empty()) access.allow_origin(request, response);
  static const std::set<std::string> kWithBody = {"POST", "PUT", "PATCH", "DELETE"};
  if (kWithBody.contains(request.method)) return Handled::Unhandled;
  if (const auto refused = access.refusal(request)) {
    reply(response, *refused);
    return Handled::Handled;
  }
  if (request.method != "OPTIONS") return Handled::Unhandled;
  response.status = 204;
  return Handled::Handled;
}

// Sends a stream through a content provider. `write_all` gets a function that writes bytes and returns whether the
// client is still connected. Errors in the middle of the stream are reported in the answer's own form, because the
// status has been sent already.
template <typename WriteAll>
void stream(httplib::Response& response, const WriteAll& write_all) {
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider("text/event-stream", [write_all](size_t, httplib::DataSink& sink) {
    const auto write = [&](const std::string& bytes) {
      return sink.is_writable() && (bytes.empty() || sink.write(bytes.data(), bytes.size()));
    };
    try {
      if (!write_all(write)) return false;
    } catch (...) {
      const WireError error = wire_error(std::current_exception());
      note_failure(error);
      write("data: " + dump(error.body()) + "\n\n");
    }
    sink.done();
    return true;
  });
}

// Lists unknown fields, which are ignored, in a header.
void tell_unknown(httplib::Response& response, const std::vector<std::string>& fields) {
  constexpr size_t kMost = 1000;
  std::string names;
  for (const std::string& field : fields) {
    const bool plain = std::all_of(field.begin(), field.end(), [](char c) { return c > ' ' && c <= '~' && c != ','; });
    if (plain && names.size() + field.size() < kMost) names += (names.empty() ? "" : ", ") + field;
  }
  if (!names.empty()) response.set_header("X-Ignored-Fields", names);
}

// Sends a complete answer, so that its status is known before anything is sent.
template <typename WriteAll>
void send_whole(httplib::Response& response, const WriteAll& write_all) {
  const Connection& connection = Connection::current();
  std::string bytes;
  const bool there = write_all([&](const std::string& more) {
    bytes += more;
    return connection.has_client();
  });
  if (!there) return reply(response, {kHungUp, "the client has hung up"});
  response.set_content(bytes, kJson);
}

void HttpServer::Implementation::answer(std::string bytes, httplib::Response& response, bool chat) {
  Call call = [&] {
    const Json body = body_of(std::move(bytes));
    return chat ? read_chat(body, engine, options.limits) : read_completion(body, engine, options.limits);
  }();
  const bool streams = call.stream;
  tell_unknown(response, call.unknown);
  const auto its = std::make_shared<Reply>(std::move(call), engine);
  const auto write_all = [its](const Reply::Write& write) { return its->write_all(write); };
  streams ? stream(response, write_all) : send_whole(response, write_all);
}

void HttpServer::Implementation::respond(std::string bytes, httplib::Response& response) {
  const auto made = responses.create(body_of(std::move(bytes)));
  tell_unknown(response, made->unknown());
  if (made->in_background()) {
    reply(response, 200, made->object());
    return responses.run_in_background(made, [this](const auto& why) { log.failed("/v1/responses", why); });
  }
  if (!made->streams()) {
    return send_whole(response, [made](const Reply::Write& write) {
      return made->make([&](const Json&) { return write(""); }) && write(dump(made->object()));
    });
  }
  stream(response, [made](const Reply::Write& write) {
    const bool there = made->make([&](const Json& event) {
      if (event.is_null()) return write("");
      return write(concat("event: ", event.at("type").get<std::string>(), "\ndata: ", dump(event), "\n\n"));
    });
    Connection::current().failure = made->failure();
    return there;
  });
}

void HttpServer::Implementation::embed(std::string bytes, httplib::Response& response) {
  const EmbeddingCall call = read_embeddings(body_of(std::move(bytes)), engine, options.limits);
  tell_unknown(response, call.unknown);
  send_whole(response, [&](const Reply::Write& write) { return write_embeddings(call, engine, write); });
}

// The status tells a proxy whether to send requests elsewhere.
void HttpServer::Implementation::health(httplib::Response& response) const {
  const auto load = engine.load();
  const bool store = responses.has_store();
  reply(response, load.ending || !store ? 503 : 200,
        {{"status", load.ending ? "ending"
                    : store     ? "ok"
                                : "store lost"},
         {"version", kVersion},
         {"waiting", load.waiting},
         {"reading", load.reading},
         {"writing", load.writing},
         {"store", store ? "ok" : "lost"}});
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
       [this](const Request&, Response& response, std::string body) { answer(std::move(body), response, false); });
  post("/v1/chat/completions",
       [this](const Request&, Response& response, std::string body) { answer(std::move(body), response, true); });
  post("/v1/embeddings",
       [this](const Request&, Response& response, std::string body) { embed(std::move(body), response); });
  get("/v1/models", [this](const Request&, Response& response) { reply(response, 200, models_list(engine)); });
  get("/v1/models/(.+)", [this](const Request& request, Response& response) {
    const size_t model = find_model({{"model", request.matches[1].str()}}, engine);
    reply(response, 200, model_entry(engine.models()[model]));
  });
  post("/tokenize", [this](const Request&, Response& response, std::string body) {
    reply(response, 200, tokenize(body_of(std::move(body)), engine, options.limits));
  });
  post("/detokenize", [this](const Request&, Response& response, std::string body) {
    reply(response, 200, detokenize(body_of(std::move(body)), engine, options.limits));
  });
  post("/v1/inspect", [this](const Request&, Response& response, std::string body) {
    reply(response, 200, inspector.inspect(body_of(std::move(body))));
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
       [this](const Request&, Response& response, std::string body) { respond(std::move(body), response); });
  get(kOne,
      [this](const Request& request, Response& response) { reply(response, 200, responses.get(request.matches[1])); });
  remove(kOne, [this](const Request& request, Response& response, const std::string& /*body*/) {
    reply(response, 200, responses.remove(request.matches[1]));
  });
  post("/v1/responses/([^/]+)/cancel", [this](const Request& request, Response& response, const std::string& /*body*/) {
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
               if (file == options.page.end()) refuse_method(request, response);
               response.set_header("Content-Security-Policy", kPagePolicy);
               response.set_header("Referrer-Policy", "no-referrer");
               response.set_header("Cache-Control", "no-cache");
               response.set_content(file->second.bytes, file->second.type.c_str());
             }));
}

// Tells a client that used a wrong method which methods the path has.
void HttpServer::Implementation::refuse_method(const httplib::Request& request, httplib::Response& response) const {
  std::string allowed = options.page.contains(request.path) ? "GET" : "";
  for (const auto& [path, method] : methods) {
    if (std::regex_match(request.path, path)) allowed += (allowed.empty() ? "" : ", ") + method;
  }
  const std::string what = concat("there is no ", request.method, " ", request.path);
  if (allowed.empty()) throw WireError(404, what);
  response.set_header("Allow", allowed);
  throw WireError(405, concat(what, ", but ", allowed));
}

// Handles all requests that no other handler takes.
void HttpServer::Implementation::add_others() {
  const auto none = with_body([this](const httplib::Request& request, httplib::Response& response,
                                     const std::string& /*body*/) { refuse_method(request, response); });
  server.Post("/.*", none).Put("/.*", none).Patch("/.*", none).Delete("/.*", none);
}

void HttpServer::Implementation::set_up() {
  const auto threads = static_cast<size_t>(options.connections);
  server.new_task_queue = [threads] { return new Workers(threads); };
  server.set_payload_max_length(static_cast<size_t>(options.body_bytes));
  server.set_read_timeout(5);
  server.set_write_timeout(5);
  // One request per connection: the library does not close a connection whose body it has not read to the end, and
  // would take the rest for the next request. This also keeps idle clients from holding a thread.
  server.set_keep_alive_max_count(1);
  server.set_tcp_nodelay(true);
  // The library's default options would let two servers listen on one port.
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
  server.set_logger([this](const auto& request, const auto& response) { log.ended(request, response); });
  add_endpoints();
  add_responses();
  add_page();  // must come late: it takes every path
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
  fail_input_if(it_->port <= 0 || !it_->server.wait_in_line(), "[serve] ", chosen.host, ":", chosen.port,
                " cannot be listened at: is another server there, or is it not this machine's address?");
}

HttpServer::~HttpServer() = default;

std::string HttpServer::address() const {
  const std::string& host = it_->options.host;
  return concat("http://", host.find(':') == std::string::npos ? host : "[" + host + "]", ":", it_->port);
}

void HttpServer::listen() { it_->server.listen_after_bind(); }
void HttpServer::stop() { it_->server.stop(); }
bool HttpServer::take_large_bodies() { return it_->server.take_large_bodies(); }
bool HttpServer::running() const { return it_->server.is_running(); }

}  // namespace cortado
