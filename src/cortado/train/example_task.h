// Tasks whose examples have answers (tasks/): tokens with targets, or classes.
#pragma once

#include <memory>

#include "cortado/tasks/examples.h"
#include "cortado/train/task.h"

namespace cortado {

// The task that a config's object "task" names. Language models learn its targets, classifiers its classes.
std::unique_ptr<TaskData> open_example_data(const Json& task);

// What `model` answers to the examples of a split (the first `most`, 0: all), scored: the task's metrics and, as
// "loss", the mean cross-entropy in nats of what has a target. No gradients, no dropout.
Json score_examples(const Backbone& model, const TaskExamples& task, Split split, int64_t batch, int64_t most,
                    const std::function<void(int64_t done, int64_t total)>& progress = {});

}  // namespace cortado
