// Finds a mechanism's settings by building it and recording what it reads.
#include <set>

#include "cortado/mechanisms/registry.h"
#include "cortado/nn/initialization.h"

namespace cortado {
namespace {

// All settings that differ from `settings` in one key: another of its words, or its switch flipped.
std::vector<Json> others(const Json& settings, const std::vector<JsonReader::Question>& questions) {
  std::vector<Json> found;
  for (const auto& question : questions) {
    std::vector<Json> values(question.words.begin(), question.words.end());
    if (question.fallback.is_boolean()) values = {true, false};
    for (const Json& value : values) {
      if (value == question.fallback || settings.contains(question.key)) continue;
      found.push_back(settings);
      found.back()[question.key] = value;
    }
  }
  return found;
}

}  // namespace

std::vector<JsonReader::Question> settings_of(const Mechanism& mechanism, const MixerContext& context) {
  const KeptGenerator kept;
  const SkipInitialization skip;
  constexpr size_t kDeep = 2;  // keys that are changed together
  std::vector<JsonReader::Question> all;
  std::set<std::string> known;
  std::vector<Json> waiting = {Json::object()};
  while (!waiting.empty()) {
    const Json settings = waiting.back();
    waiting.pop_back();
    JsonReader reader(settings, mechanism.name);
    try {
      mechanism.make(reader, context);
    } catch (const InputError&) {
      // Such a word needs another setting, which has been recorded already.
    }
    bool more = settings.empty();
    for (const auto& question : reader.questions()) {
      if (!known.insert(question.key).second) continue;
      all.push_back(question);
      more = true;
    }
    if (!more || settings.size() >= kDeep) continue;
    const auto next = others(settings, reader.questions());
    waiting.insert(waiting.begin(), next.begin(), next.end());
  }
  return all;
}

}  // namespace cortado
