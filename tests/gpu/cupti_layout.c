/*
 * For tests only: what crates/layers/cuda reads of CUPTI's records, held against CUPTI's own headers. cuda.sh
 * passes the offsets (AT_...) and sizes (SIZE_...) that are in records.rs, and the ids of calls from api.rs
 * as IDS.
 */
#include <stddef.h>

#include <cupti.h>

#define SAME(what, ours) _Static_assert((what) == (ours), #what " is not " #ours)

#define FIELDS(type, size)                                                                                   \
    SAME(sizeof(type), size);                                                                                \
    SAME(offsetof(type, kind), AT_KIND);                                                                     \
    SAME(offsetof(type, start), AT_START);                                                                   \
    SAME(offsetof(type, end), AT_END);                                                                       \
    SAME(offsetof(type, deviceId), AT_DEVICE);                                                               \
    SAME(offsetof(type, contextId), AT_CONTEXT);                                                             \
    SAME(offsetof(type, streamId), AT_STREAM);                                                               \
    SAME(offsetof(type, correlationId), AT_CORRELATION);                                                     \
    SAME(offsetof(type, name), AT_NAME);                                                                     \
    SAME(offsetof(type, queued), AT_QUEUED);                                                                 \
    SAME(offsetof(type, submitted), AT_SUBMITTED)

#define GRAPH_FIELDS(type, size)                                                                             \
    FIELDS(type, size);                                                                                      \
    SAME(offsetof(type, graphNodeId), AT_GRAPH_NODE)

FIELDS(CUpti_ActivityKernel4, SIZE_4);
GRAPH_FIELDS(CUpti_ActivityKernel5, SIZE_5);
GRAPH_FIELDS(CUpti_ActivityKernel6, SIZE_6);
GRAPH_FIELDS(CUpti_ActivityKernel7, SIZE_7);
GRAPH_FIELDS(CUpti_ActivityKernel8, SIZE_8);
GRAPH_FIELDS(CUpti_ActivityKernel9, SIZE_9);
GRAPH_FIELDS(CUpti_ActivityKernel10, SIZE_10);
GRAPH_FIELDS(CUpti_ActivityKernel11, SIZE_11);
GRAPH_FIELDS(CUpti_ActivityKernel12, SIZE_12);
GRAPH_FIELDS(CUpti_ActivityKernel13, SIZE_13);

SAME(offsetof(CUpti_CallbackData, callbackSite), 0);
SAME(offsetof(CUpti_CallbackData, correlationId), 64);
SAME(CUPTI_API_ENTER, 0);
SAME(CUPTI_SUCCESS, 0);
SAME(CUPTI_CB_DOMAIN_DRIVER_API, 1);
SAME(CUPTI_CB_DOMAIN_RUNTIME_API, 2);
SAME(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 10);
SAME(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED, 1);
SAME(CUPTI_TIMESTAMP_UNKNOWN, 0);

#define RUNTIME(name, id) SAME(CUPTI_RUNTIME_TRACE_CBID_##name, id)
#define DRIVER(name, id)  SAME(CUPTI_DRIVER_TRACE_CBID_##name, id)
IDS
