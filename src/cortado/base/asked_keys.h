// Lists the settings that the program knows, by recording which keys the readers of JSON objects ask for.
#pragma once

#include <string>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Records the questions of every JsonReader of this thread during its lifetime, with each reader's place. At most one
// recorder per thread may exist at a time.
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

  // Called by JsonReader: adds a question to this thread's recorder, if there is one.
  static void add(const std::string& place, const JsonReader::Question& question);

 private:
  std::vector<Key> keys_;
};

}  // namespace cortado
