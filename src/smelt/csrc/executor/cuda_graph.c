/* Records, patches and launches CUDA graphs. */
#include "executor/cuda_graph.h"

#include <stdlib.h>
#include <string.h>

enum { RELAXED_CAPTURE = 2, IS_RECORDING = 1, HOST_MEMORY = 1, DEVICE_MEMORY = 2 };
enum { KERNEL_NODE = 0, COPY_NODE = 1, FILL_NODE = 2, EMPTY_NODE = 5 }; /* that a graph may have */

/* A kernel or a copy that depends on values. Its words are the parameters of the kernel; or the address that is copied to,
   the one from, and the number of bytes. */
typedef struct {
    CudaNode handle;
    CudaKernelNode kernel; /* without a function: a copy */
    int64_t first, count;  /* of its words */
    bool is_changed;
} Node;

/* A word that a value decides about. */
typedef struct {
    CudaSource source;
    int64_t word, node;
} Link;

struct CudaGraph {
    const CudaDriver *driver;
    CudaContext context;
    CudaStream stream; /* that is recorded; NULL: none is */
    bool is_recording;
    CudaGraphHandle handle;
    CudaGraphExec exec;
    CudaNode last_kernel; /* noted while recording */
    Node *nodes;
    Link *links;
    uint64_t *words;
    int64_t node_count, link_count, word_count;
    int64_t node_room, link_room, word_room;
    void **parameters; /* room for those of a kernel */
    int64_t most_parameters, patch_count;
};

bool
smelt_graph_is_possible(const CudaDriver *driver)
{
    return driver->begin_capture && driver->end_capture && driver->capture_info && driver->instantiate
           && driver->destroy_graph && driver->destroy_exec && driver->set_kernel && driver->set_copy
           && driver->launch_graph && driver->is_capturing && driver->get_nodes && driver->get_type && driver->get_copy;
}

/* --- recording ------------------------------------------------------------------------------------------------ */

CudaResult
smelt_graph_begin(CudaGraph **graph, const CudaDriver *driver, CudaContext context, CudaStream stream)
{
    CudaGraph *created = *graph = calloc(1, sizeof *created);
    if (created == NULL) {
        return CUDA_OUT_OF_MEMORY;
    }
    *created = (CudaGraph){.driver = driver, .context = context, .stream = stream};
    const CudaResult status = driver->begin_capture(stream, RELAXED_CAPTURE);
    created->is_recording = status == 0;
    return status;
}

/* Room for `more` behind `count` things of a size. */
static bool
has_room(void *array, int64_t *room, int64_t count, int64_t more, size_t size)
{
    if (count + more <= *room) {
        return true;
    }
    const int64_t capacity = 2 * (count + more) + 16;
    void *moved = realloc(*(void **)array, (size_t)capacity * size);
    if (moved == NULL) {
        return false;
    }
    *(void **)array = moved;
    *room = capacity;
    return true;
}

/* The node that was recorded last. */
static CudaResult
last_node(const CudaGraph *graph, CudaNode *node)
{
    int status = 0;
    uint64_t number;
    CudaGraphHandle handle;
    const CudaNode *last = NULL;
    size_t count = 0;
    const CudaDriver *driver = graph->driver;
    const void *edges = NULL; /* of overlapping launches, which the older function refuses to tell */
    const CudaResult result =
        driver->capture_edges ? driver->capture_edges(graph->stream, &status, &number, &handle, &last, &edges, &count)
                              : driver->capture_info(graph->stream, &status, &number, &handle, &last, &count);
    if (result) {
        return result;
    }
    if (status != IS_RECORDING || count != 1) {
        return CUDA_INVALID_VALUE;
    }
    *node = *last;
    return 0;
}

bool
smelt_graph_may_overlap(const CudaGraph *graph)
{
    CudaNode last;
    return graph->last_kernel && last_node(graph, &last) == 0 && last == graph->last_kernel;
}

static CudaResult
add_node(CudaGraph *graph, const CudaKernelNode *kernel, const uint64_t *const *words, const CudaSource *sources,
         int64_t count)
{
    Node node = {.kernel = *kernel, .first = graph->word_count, .count = count};
    const CudaResult result = last_node(graph, &node.handle);
    if (result) {
        return result;
    }
    graph->last_kernel = kernel->function ? node.handle : NULL;
    if (!has_room(&graph->nodes, &graph->node_room, graph->node_count, 1, sizeof *graph->nodes)
        || !has_room(&graph->words, &graph->word_room, graph->word_count, count, sizeof *graph->words)
        || !has_room(&graph->links, &graph->link_room, graph->link_count, count, sizeof *graph->links)) {
        return CUDA_OUT_OF_MEMORY;
    }
    bool depends = false;
    for (int64_t i = 0; i < count; i++) {
        graph->words[graph->word_count + i] = *words[i];
        if (sources[i].value >= 0) {
            graph->links[graph->link_count++] = (Link){sources[i], graph->word_count + i, graph->node_count};
            depends = true;
        }
    }
    if (depends) {
        graph->nodes[graph->node_count++] = node;
        graph->word_count += count;
        graph->most_parameters = count > graph->most_parameters ? count : graph->most_parameters;
    }
    return 0;
}

CudaResult
smelt_graph_add_launch(CudaGraph *graph, CudaFunction function, const CudaKernelNode *node, const CudaSource *sources,
                       int64_t count)
{
    CudaKernelNode kernel = *node;
    kernel.function = function;
    kernel.parameters = NULL;
    return add_node(graph, &kernel, (const uint64_t *const *)node->parameters, sources, count);
}

CudaResult
smelt_graph_add_copy(CudaGraph *graph, int64_t value, void *to, const void *from, int64_t bytes)
{
    const uint64_t numbers[] = {(uintptr_t)to, (uintptr_t)from, (uint64_t)bytes};
    const uint64_t *const words[] = {&numbers[0], &numbers[1], &numbers[2]};
    const CudaSource sources[] = {{value, 0}, {-1, 0}, {-1, 0}};
    const CudaResult result = graph->driver->within_device(numbers[0], numbers[1], (size_t)bytes, graph->stream);
    return result ? result : add_node(graph, &(CudaKernelNode){.function = NULL}, words, sources, 3);
}

/* Whether launching a graph does again what was recorded. Memory of the host that was copied may be gone by then, and
   what runs on the host may do anything. */
static CudaResult
check_nodes(const CudaGraph *graph)
{
    const CudaDriver *driver = graph->driver;
    size_t count = 0;
    CudaResult result = driver->get_nodes(graph->handle, NULL, &count);
    CudaNode *nodes = result ? NULL : malloc((count + 1) * sizeof *nodes);
    if (nodes == NULL) {
        return result ? result : CUDA_OUT_OF_MEMORY;
    }
    result = driver->get_nodes(graph->handle, nodes, &count);
    for (size_t i = 0; result == 0 && i < count; i++) {
        int type = EMPTY_NODE;
        CudaCopyNode copy = {.width = 0};
        result = driver->get_type(nodes[i], &type);
        if (result == 0 && type == COPY_NODE) {
            result = driver->get_copy(nodes[i], &copy);
        }
        const bool is_known = type == KERNEL_NODE || type == COPY_NODE || type == FILL_NODE || type == EMPTY_NODE;
        if (!is_known || copy.from.memory_type == HOST_MEMORY || copy.to.memory_type == HOST_MEMORY) {
            result = result ? result : CUDA_INVALID_VALUE;
        }
    }
    free(nodes);
    return result;
}

CudaResult
smelt_graph_end(CudaGraph *graph)
{
    graph->is_recording = false;
    CudaResult result = graph->driver->end_capture(graph->stream, &graph->handle);
    if (result) {
        graph->handle = NULL;
        return result;
    }
    graph->parameters = malloc(((size_t)graph->most_parameters + 1) * sizeof *graph->parameters);
    if (graph->parameters == NULL) {
        return CUDA_OUT_OF_MEMORY;
    }
    result = check_nodes(graph);
    result = result ? result : graph->driver->instantiate(&graph->exec, graph->handle, 0);
    graph->exec = result ? NULL : graph->exec;
    return result;
}

void
smelt_graph_free(CudaGraph *graph)
{
    CudaContext before;
    if (graph == NULL) {
        return;
    }
    const CudaDriver *driver = graph->driver;
    if (cuda_enter(driver, graph->context, &before) == 0) {
        if (graph->is_recording) {
            driver->end_capture(graph->stream, &graph->handle);
        }
        if (graph->exec) {
            driver->destroy_exec(graph->exec);
        }
        if (graph->handle) {
            driver->destroy_graph(graph->handle);
        }
        cuda_leave(driver, graph->context, before);
    }
    free(graph->nodes);
    free(graph->links);
    free(graph->words);
    free(graph->parameters);
    free(graph);
}

/* --- launching ------------------------------------------------------------------------------------------------ */

static CudaResult
set_node(CudaGraph *graph, Node *node)
{
    uint64_t *words = &graph->words[node->first];
    if (node->kernel.function == NULL) {
        const CudaCopyNode copy = {
            .from = {.memory_type = DEVICE_MEMORY, .device = words[1], .pitch = words[2], .height = 1},
            .to = {.memory_type = DEVICE_MEMORY, .device = words[0], .pitch = words[2], .height = 1},
            .width = words[2],
            .height = 1,
            .depth = 1,
        };
        return graph->driver->set_copy(graph->exec, node->handle, &copy, graph->context);
    }
    for (int64_t i = 0; i < node->count; i++) {
        graph->parameters[i] = &words[i];
    }
    node->kernel.parameters = graph->parameters;
    return graph->driver->set_kernel(graph->exec, node->handle, &node->kernel);
}

/* What a value says that a word is. */
static uint64_t
word_of(const CudaSource *source, const uint64_t *addresses)
{
    uint64_t word = addresses[source->value];
    if (source->bytes) {
        const void *number = (const void *)(uintptr_t)word;
        word = 0;
        memcpy(&word, number, (size_t)source->bytes);
    }
    return word;
}

/* In the context of the graph. */
static CudaResult
set_nodes(CudaGraph *graph, const uint64_t *addresses)
{
    bool is_changed = false;
    for (int64_t i = 0; i < graph->link_count; i++) {
        const Link *link = &graph->links[i];
        const uint64_t word = word_of(&link->source, addresses);
        if (word != graph->words[link->word]) {
            graph->words[link->word] = word;
            graph->nodes[link->node].is_changed = is_changed = true;
        }
    }
    for (int64_t i = 0; is_changed && i < graph->node_count; i++) {
        Node *node = &graph->nodes[i];
        if (node->is_changed) {
            const CudaResult result = set_node(graph, node);
            if (result) {
                return result;
            }
            node->is_changed = false;
            graph->patch_count++;
        }
    }
    return 0;
}

CudaResult
smelt_graph_launch(CudaGraph *graph, CudaStream stream, const uint64_t *addresses)
{
    CudaContext before;
    CudaResult result = cuda_enter(graph->driver, graph->context, &before);
    if (result) {
        return result;
    }
    result = set_nodes(graph, addresses);
    result = result ? result : graph->driver->launch_graph(graph->exec, stream);
    cuda_leave(graph->driver, graph->context, before);
    return result;
}

int64_t
smelt_graph_node_count(const CudaGraph *graph)
{
    return graph->node_count;
}

int64_t
smelt_graph_patch_count(const CudaGraph *graph)
{
    return graph->patch_count;
}
