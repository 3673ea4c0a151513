#include "cortado/base/asked_keys.h"

namespace cortado {
namespace {

thread_local AskedKeys* recording = nullptr;

}  // namespace

AskedKeys::AskedKeys() { recording = this; }
AskedKeys::~AskedKeys() { recording = nullptr; }

void AskedKeys::add(const std::string& place, const JsonReader::Question& question) {
  if (recording) recording->keys_.push_back({place, question});
}

}  // namespace cortado
