// The keys that readers of JSON ask for, wherever in the program: what settings there are.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Records, while it lives, every question of every JsonReader of this thread, together with the reader's place. One at a
// time per thread.
class AskedKeys {
 public:
  struct Key {
    std::string place;  // "config.feed_forward"
    JsonReader::Question question;
  };

  AskedKeys();
  ~AskedKeys();
  AskedKeys(const AskedKeys&) = delete;
  AskedKeys& operator=(const AskedKeys&) = delete;

  const std::vector<Key>& keys() const { return keys_; }

  // For JsonReader: adds a question to the one that lives, if there is one.
  static void add(const std::string& place, const JsonReader::Question& question);

 private:
  std::vector<Key> keys_;
};

}  // namespace cortado
