// Tokenizers that have learnt from files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cortado/base/files.h"
#include "cortado/tokenizers/tokenizer.h"

namespace cortado::testing {

inline std::shared_ptr<Tokenizer> make_tokenizer(const std::string& spec, const std::vector<std::string>& files) {
  size_t next = 0;
  return learn_tokenizer(spec, [&](std::string& piece) {
    if (next == files.size()) return false;
    piece += read_file(files[next++]);
    return true;
  });
}

}  // namespace cortado::testing
