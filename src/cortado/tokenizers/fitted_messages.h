// Conversations for chat templates that have no place for some of their messages.
#pragma once

#include <cstdint>
#include <vector>

#include "cortado/base/json.h"

namespace cortado {

// Messages, and where they come from: the index of each in the conversation.
struct FittedMessages {
  Json messages = Json::array();
  std::vector<int32_t> sources = {};
};

// The conversation with `developer`, OpenAI's later word for it, as `system`.
FittedMessages with_system_role(const Json& messages);
// As above, with all system messages joined into the first message by empty lines.
FittedMessages with_one_system(const Json& messages);
// As above, with the system message in front of the first user's.
FittedMessages without_system(const Json& messages);

}  // namespace cortado
