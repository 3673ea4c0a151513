// RWKV-6 and RWKV-7 as their authors publish them, and RWKV-6 as transformers' folders with code of their own have it.
#pragma once

#include <map>
#include <string>

#include "cortado/models/pretrained/renamed.h"

namespace cortado {

struct PublishedRwkv {
  RenamedModel model;
  std::map<std::string, Tensor> tensors;  // by the names of flash-linear-attention's folders
};

// Whether tensors have the names of these files, of any version.
bool is_published_rwkv(const std::map<std::string, Tensor>& tensors);

// Throws InputError for versions before 6, and for tensors that the sizes cannot be read from. `source`: for messages.
PublishedRwkv read_published_rwkv(const std::map<std::string, Tensor>& tensors, const std::string& source);

}  // namespace cortado
