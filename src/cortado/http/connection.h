// The connection that a thread serves: whether its client is still there, and what has gone wrong with its answer.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>

namespace cortado {

// One request of one client, between the socket's opening and its closing, all in one thread.
struct Connection {
  int socket = -1;
  std::string failure = {};  // why its answer failed: one line, without what was asked; empty: it did not
  size_t bytes = 0;          // of its body

  static Connection& current();  // of this thread
  // Whether somebody may still read what is sent. Who has closed his side, or half of it, is gone.
  bool has_client() const;
};

// The library's server, which says neither whose connection a handler answers nor when it has ended.
class Listener : public httplib::Server {
 public:
  // Bodies from this size on leave much free memory behind that the heap does not give back by itself.
  static constexpr size_t kLargeBody = 1 << 18;

  // Clients that wait until they are taken: as many as the system allows, not the library's five. Of more at once some
  // would be told that the connection was reset. After it has been bound.
  bool wait_in_line() { return ::listen(svr_sock_, SOMAXCONN) == 0; }

  // Whether the request of a large body has ended since it was asked last.
  bool take_large_bodies() { return large_.exchange(false); }

 private:
  bool process_and_close_socket(socket_t socket) override;

  std::atomic<bool> large_ = false;
};

}  // namespace cortado
