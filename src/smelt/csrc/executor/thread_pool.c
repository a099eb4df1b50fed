/* The thread pool of a session: its threads wait for chunks of a kernel, and end with the session.

   Chunk i is for thread i, so that a thread finds its earlier writes in its cache; a thread that is done takes chunks
   that nobody has begun. Workers spin for a while before they sleep, because kernels follow each other within
   microseconds. */
#include "executor/thread_pool.h"

#include "executor/platform/platform.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE = 2000 }; /* looks for work before a worker sleeps */

typedef struct {
    smelt_task task;
    void *data;
    int64_t count;
} Job;

struct Worker {
    Pool *pool;
    int64_t number;
    pthread_t thread;
};

struct Pool {
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    Job job;                      /* written under the mutex before `round` */
    atomic_uint round;            /* odd: work to do */
    atomic_int busy;              /* workers inside of this round */
    atomic_bool stopping;
    int sleeping;                 /* under the mutex */
    atomic_bool awaited;          /* who runs the job sleeps until nobody is busy */
    pid_t owner;
    smelt_allocator allocator;
    size_t bytes;
    int64_t workers;
    atomic_uint claimed[MOST_THREADS]; /* words: RISC-V exchanges bytes only with libatomic */
    struct Worker all[];
};

static _Thread_local Threads *current;

Threads *
smelt_threads_begin(Threads *threads)
{
    Threads *before = current;
    if (threads->pool && threads->pool->owner != getpid()) {
        threads->alone = true; /* a child of fork(): the threads are not here */
        threads->pool = NULL;  /* lost with them */
    }
    current = threads;
    return before;
}

void
smelt_threads_end(Threads *before)
{
    current = before;
}

int
smelt_processor_count(void)
{
    const int64_t count = smelt_system_processors();
    return count < MOST_THREADS ? (int)count : MOST_THREADS;
}

/* --- the pool ---------------------------------------------------------------------------------------------- */

static inline void
pause_a_little(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Its own chunk first, then those that nobody has begun. */
static void
run_claimed(Pool *pool, int64_t own)
{
    const Job job = pool->job;
    for (int64_t i = 0; i < job.count; i++) {
        const int64_t chunk = (own + i) % job.count;
        if (!atomic_load_explicit(&pool->claimed[chunk], memory_order_relaxed)
            && !atomic_exchange_explicit(&pool->claimed[chunk], 1, memory_order_acq_rel)) {
            job.task(job.data, chunk);
        }
    }
}

/* The round that is to be worked on: odd, and another than the last. */
static unsigned
next_round(Pool *pool, unsigned last)
{
    for (int i = 0; i < PATIENCE; i++) {
        const unsigned round = atomic_load_explicit(&pool->round, memory_order_acquire);
        if ((round & 1 && round != last) || atomic_load_explicit(&pool->stopping, memory_order_relaxed)) {
            return round;
        }
        pause_a_little();
    }
    pthread_mutex_lock(&pool->mutex);
    unsigned round;
    pool->sleeping++;
    while (round = atomic_load(&pool->round), !(round & 1 && round != last) && !atomic_load(&pool->stopping)) {
        pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    pool->sleeping--;
    pthread_mutex_unlock(&pool->mutex);
    return round;
}

static void *
work(void *argument)
{
    struct Worker *worker = argument;
    Pool *pool = worker->pool;
    unsigned last = 0;
    while (true) {
        last = next_round(pool, last);
        if (atomic_load(&pool->stopping)) {
            return NULL;
        }
        /* In, unless the round has ended meanwhile: who runs the job waits for those who are in. */
        atomic_fetch_add(&pool->busy, 1);
        if (atomic_load(&pool->round) == last) {
            run_claimed(pool, worker->number);
        }
        if (atomic_fetch_sub(&pool->busy, 1) == 1 && atomic_load(&pool->awaited)) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void
stop_workers(Pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stopping, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int64_t i = 0; i < pool->workers; i++) {
        pthread_join(pool->all[i].thread, NULL);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    pool->allocator.release(pool->allocator.context, pool, pool->bytes);
}

/* NULL: there are no threads to be had. */
static Pool *
start(const smelt_allocator *allocator, int64_t threads)
{
    const size_t bytes = sizeof(Pool) + (size_t)(threads - 1) * sizeof(struct Worker);
    Pool *pool = allocator->allocate(allocator->context, bytes, 64);
    if (pool == NULL) {
        return NULL;
    }
    memset(pool, 0, bytes);
    pool->allocator = *allocator;
    pool->bytes = bytes;
    pthread_mutex_init(&pool->mutex, NULL); /* with default attributes none of the three fails */
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->owner = getpid();
    while (pool->workers < threads - 1) {
        struct Worker *worker = &pool->all[pool->workers];
        *worker = (struct Worker){.pool = pool, .number = pool->workers + 1};
        if (!smelt_thread_start(&worker->thread, work, worker)) {
            break;
        }
        pool->workers++;
    }
    if (pool->workers == 0) {
        stop_workers(pool);
        return NULL;
    }
    return pool;
}

static void
run_by_pool(Pool *pool, int64_t count, smelt_task task, void *data)
{
    pthread_mutex_lock(&pool->mutex);
    pool->job = (Job){task, data, count};
    for (int64_t i = 0; i < count; i++) {
        atomic_store_explicit(&pool->claimed[i], 0, memory_order_relaxed);
    }
    atomic_fetch_add(&pool->round, 1);
    if (pool->sleeping) {
        pthread_cond_broadcast(&pool->wake);
    }
    pthread_mutex_unlock(&pool->mutex);
    run_claimed(pool, 0);
    /* All chunks are begun. From here on nobody comes in; those who are in may still run theirs. */
    atomic_fetch_add(&pool->round, 1);
    for (int i = 0; i < PATIENCE && atomic_load_explicit(&pool->busy, memory_order_acquire); i++) {
        pause_a_little();
    }
    if (atomic_load(&pool->busy)) {
        pthread_mutex_lock(&pool->mutex);
        atomic_store(&pool->awaited, true);
        while (atomic_load(&pool->busy)) {
            pthread_cond_wait(&pool->done, &pool->mutex);
        }
        atomic_store(&pool->awaited, false);
        pthread_mutex_unlock(&pool->mutex);
    }
}

void
smelt_threads_stop(Threads *threads)
{
    if (threads->pool && threads->pool->owner == getpid()) {
        stop_workers(threads->pool);
    }
    threads->pool = NULL;
}

void
smelt_run_by_session(int64_t most, int64_t count, smelt_task task, void *data)
{
    Threads *threads = current;
    (void)most; /* of the session's threads, which are as many */
    if (threads && threads->parallel_for) {
        threads->parallel_for(threads->context, count, task, data);
        return;
    }
    if (threads && !threads->pool && !threads->alone) {
        threads->pool = start(threads->allocator, threads->threads);
        threads->alone = threads->pool == NULL;
    }
    if (threads && threads->pool) {
        run_by_pool(threads->pool, count, task, data);
        return;
    }
    for (int64_t chunk = 0; chunk < count; chunk++) {
        task(data, chunk);
    }
}
