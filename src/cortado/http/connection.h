// The connection that a thread serves: whether its client is still connected, and why its answer failed.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>

namespace cortado {

// One request of one client, from opening to closing the socket, all in one thread.
struct Connection {
  int socket = -1;
  // Why the answer failed, in one line without the request's content; empty if it did not fail.
  std::string failure = {};
  size_t bytes = 0;  // of the request's body

  static Connection& current();  // this thread's connection
  // Whether the client may still read. A client that has closed its side, or half of it, counts as gone.
  bool has_client() const;
};

// cpp-httplib's server, extended: a handler can find its connection and learns when it has ended.
class Listener : public httplib::Server {
 public:
  // Bodies of at least this size leave much free memory behind that the heap does not return by itself.
  static constexpr size_t kLargeBody = 1 << 18;

  // Lets as many clients wait for a connection as the system allows, instead of the library's five; others would get a
  // connection reset. Call it after binding. Returns false if it fails.
  bool wait_in_line() { return ::listen(svr_sock_, SOMAXCONN) == 0; }

  // Whether a request with a large body has ended since the last call.
  bool take_large_bodies() { return large_.exchange(false); }

 private:
  bool process_and_close_socket(socket_t socket) override;

  std::atomic<bool> large_ = false;
};

}  // namespace cortado
